"""How the offline model chooses: by words in common with what the instructions say, never by a label's name."""

import json

from hypothesis import given
from hypothesis import strategies as st

from local.model_answers import answer
from local.model_choice import NONE, choose
from stafette.agent import route
from stafette.agent.answer import output_format
from stafette.agent.route import Place

AMONG = (
    Place("alpha", "ticket", "Lost luggage.", ("where is my suitcase",)),
    Place("beta", "ticket", "Refunds.", ("give me my money back", "refund my ticket")),
)
TOLD = route.briefing(AMONG)
LABELS = ["alpha", "beta", NONE]


def test_message_goes_to_the_label_with_which_it_shares_words() -> None:
    for text, label in (("my suitcase is lost", "alpha"), ("money back please", "beta")):
        said, sure = choose("agent", LABELS, TOLD, text) or ("", 0)
        assert said == label
        assert 0 < sure <= 1


def test_message_that_shares_nothing_is_for_nobody_where_that_can_be_said() -> None:
    assert choose("agent", LABELS, TOLD, "zebra") == (NONE, 1.0)
    assert choose("agent", LABELS[:2], TOLD, "zebra") == ("alpha", 0.0)


def test_the_name_of_a_label_in_the_message_means_nothing() -> None:
    plain = choose("agent", LABELS, TOLD, "my suitcase is lost")
    assert plain is not None
    assert choose("agent", LABELS, TOLD, "beta! my suitcase is lost") == plain
    renamed, names = TOLD.replace("alpha", "gamma"), ["gamma", "beta", NONE]
    assert choose("agent", names, renamed, "my suitcase is lost") == ("gamma", plain[1])


def test_instructions_that_describe_no_two_labels_leave_it_to_the_other_rules() -> None:
    assert choose("agent", LABELS, "- `alpha`: suitcases", "my suitcase") is None
    assert choose("other", LABELS, TOLD, "my suitcase") is None


@given(st.text(), st.text())
def test_any_text_has_an_answer_that_fits(instructions: str, message: str) -> None:
    kind = route.answer_of(("alpha", "beta"))
    request = {
        "model": "m",
        "max_tokens": 500,
        "system": [{"type": "text", "text": TOLD}, {"type": "text", "text": instructions}],
        "messages": [{"role": "user", "content": message or "-"}],
        "output_config": output_format(kind),
    }
    [block] = answer(request)["content"]
    kind.model_validate(json.loads(block["text"]))
