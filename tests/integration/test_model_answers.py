"""How an answer becomes a value, and what is recorded of the call, whatever the answer was."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel, Field

from local.model import OfflineModel, Response, error, says
from stafette.agent import model
from stafette.agent.answer import output_format
from stafette.agent.definition import load
from stafette.core.errors import PermanentError, TransientError

Make = Callable[..., Any]

USAGE = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 300,
    "cache_read_input_tokens": 9842,
    "output_tokens": 50,
}
GOOD = {"category": "card", "urgency": "high", "confidence": 0.9, "reason": "stolen"}


def label(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


def test_answer_becomes_a_value_and_the_call_is_recorded(
    worker: Make, offline: OfflineModel
) -> None:
    asking = worker()
    assert asking.ask().model_dump() == {
        "category": "card",
        "urgency": "high",
        "confidence": 0.9,
        "reason": "The ticket says “card”. (offline model: fixed rules, not a language model)",
    }
    [call] = asking.calls()
    assert (call["agent"], call["model"], call["outcome"], call["why"], call["n"]) == (
        "classifier",
        "claude-haiku-5-5",
        "ok",
        "ask",
        1,
    )
    assert call["provider"] == "offline"
    assert call["cost_micro"] == (call["input"] + 5 * call["output"] + 5) // 10 > 0
    assert call["usage_incomplete"] is False
    assert call["expires"] > call["began"]


def test_request_holds_the_agents_file_the_text_and_the_schema(
    worker: Make, offline: OfflineModel
) -> None:
    worker().ask("Where is my card?")
    [request] = offline.requests
    assert request["messages"] == [{"role": "user", "content": "Where is my card?"}]
    [system] = request["system"]
    assert system["text"].startswith("You sort the tickets")
    assert system["cache_control"] == {"type": "ephemeral"}
    assert request["max_tokens"] == 512
    assert request["output_config"]["format"]["schema"]["additionalProperties"] is False
    assert request["thinking"] == {"type": "disabled"}
    assert "effort" not in request["output_config"]


@pytest.mark.parametrize(
    ("name", "effort", "thinking", "sent"),
    [
        ("claude-haiku-5-5", None, {"type": "disabled"}, None),
        ("claude-haiku-5-5", "low", {"type": "adaptive"}, "low"),
        ("claude-sonnet-5-5", None, {"type": "between_tools"}, None),
        ("claude-opus-5-5", None, None, None),
        ("claude-opus-5-5", "high", {"type": "adaptive"}, "high"),
        ("claude-haiku-4-5", "high", None, None),
    ],
)
def test_model_is_sent_only_the_thinking_that_it_takes(
    offline: OfflineModel,
    name: str,
    effort: str | None,
    thinking: dict[str, str] | None,
    sent: str | None,
) -> None:
    asked = load("writer").model_copy(update={"model": name, "effort": effort})
    model.send(asked, [{"role": "user", "content": "Hello"}], seconds=5)
    [request] = offline.requests
    assert request.get("thinking") == thinking
    assert request.get("output_config", {}).get("effort") == sent


def test_calls_of_an_attempt_are_numbered(worker: Make) -> None:
    asking = worker()
    asking.ask()
    asking.ask()
    assert [call["sk"] for call in asking.calls()] == [
        "CALL#classify#0001#001",
        "CALL#classify#0001#002",
    ]


def test_call_for_a_part_is_recorded_beside_the_part(worker: Make) -> None:
    asking = worker(part=7)
    asking.ask()
    [call] = asking.calls()
    assert call["pk"] == "JOB#j1#enrich#000"


def test_record_is_begun_before_the_request_and_holds_no_prompt_and_no_answer_that_was_rejected(
    worker: Make, offline: OfflineModel
) -> None:
    asking = worker()
    seen: list[dict[str, Any]] = []

    def look(request: dict[str, Any]) -> Any:
        seen.extend(asking.calls())
        return says(label(reason="ANSWER"))(request)  # type: ignore[operator]

    offline.script(look)
    asking.ask("PROMPT", check=lambda value: "no" if value.reason == "ANSWER" else None)
    assert [(call["outcome"], call["usage_incomplete"]) for call in seen] == [("begun", True)]
    assert not any(word in str([*seen, *asking.calls()]) for word in ("PROMPT", "ANSWER"))


def test_worker_that_dies_in_the_call_leaves_it_begun(
    worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Death(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Death

    asking = worker()
    monkeypatch.setattr(httpx2.Client, "send", die)
    with pytest.raises(Death):
        asking.ask()
    assert [call["outcome"] for call in asking.calls()] == ["begun"]


@pytest.mark.parametrize("content", [[], "no JSON at all", label()])
@pytest.mark.parametrize("category", [None, "cyber"])
def test_req_llm_04_refusal_is_not_parsed_and_is_paid_for(
    worker: Make, offline: OfflineModel, content: Any, category: str | None
) -> None:
    asking = worker()
    details = {"type": "refusal", "category": category} if category else None
    offline.script(says(content, "refusal", stop_details=details, usage=USAGE))
    with pytest.raises(PermanentError, match=category or "no category") as failed:
        asking.ask()
    assert failed.value.reason == "refused"
    assert offline.calls == 1
    [call] = asking.calls()
    assert (call["outcome"], call["cost_micro"]) == ("refused", 162)


@pytest.mark.parametrize("stop", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("text", [label(), label()[:20]])
def test_req_llm_03_answer_that_was_cut_off_is_no_answer(
    worker: Make, offline: OfflineModel, stop: str, text: str
) -> None:
    offline.script(says(text, stop))
    with pytest.raises(PermanentError) as failed:
        worker().ask()
    assert failed.value.reason == "output_truncated"


@pytest.mark.parametrize("stop", ["pause_turn", "tool_use", "a_reason_of_tomorrow"])
def test_req_llm_04_unknown_stop_is_a_failure_of_that_name(
    worker: Make, offline: OfflineModel, stop: str
) -> None:
    offline.script(says(label(), stop))
    with pytest.raises(PermanentError) as failed:
        worker().ask()
    assert failed.value.reason == stop


@pytest.mark.parametrize(
    ("text", "says_where"),
    [
        ("", "not JSON"),
        ("Sure! Here it is:", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (label(category="weather"), "category"),
        (label(confidence=2), "confidence"),
        ('{"category": "card"}', "urgency"),
        ("[]", "does not fit"),
    ],
)
def test_answer_that_does_not_fit_is_paid_for_and_its_record_says_where(
    worker: Make, offline: OfflineModel, text: str, says_where: str
) -> None:
    asking = worker()
    offline.script(says(text, usage=USAGE))
    asking.ask()
    rejected, good = asking.calls()
    assert (rejected["outcome"], rejected["cost_micro"]) == ("invalid_answer", 162)
    assert (good["outcome"], good["why"]) == ("ok", "retry")
    assert says_where in rejected["fault"]
    assert "weather" not in str(rejected)


class Point(BaseModel):
    x: float


class Score(BaseModel):
    score: float
    more: list[Point] = []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"score": NaN}', "score"),
        ('{"score": "NaN"}', "score"),
        ('{"score": -Infinity}', "score"),
        ('{"score": 1e999}', "score"),
        ('{"score": 1, "more": [{"x": 1e999}]}', r"more\.0\.x"),
    ],
)
def test_req_parse_03_numbers_that_are_not_finite_are_refused_with_their_place(
    worker: Make, offline: OfflineModel, text: str, place: str
) -> None:
    asking = worker()
    offline.script(says(text))
    # An agent without a floor: Score has no confidence.
    asking.ask(answer=Score, agent="writer")
    rejected, _ = asking.calls()
    assert rejected["outcome"] == "invalid_answer"
    assert re.search(place, rejected["fault"])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("ok \ud83c", "ok \ufffd"),
        ("\udf78 ok", "\ufffd ok"),
        ("\ud83c\udf78", "🍸"),
        ("日本 🍸", "日本 🍸"),
    ],
)
@pytest.mark.parametrize("escaped", [True, False])
def test_req_parse_04_lone_surrogates_are_replaced_and_pairs_are_joined(
    worker: Make, offline: OfflineModel, written: str, read: str, escaped: bool
) -> None:
    offline.script(says(json.dumps({**GOOD, "reason": written}, ensure_ascii=escaped)))
    value = worker().ask("a lone \ud83c in the ticket")
    assert value.reason == read
    value.reason.encode()
    assert offline.requests[0]["messages"][0]["content"] == "a lone \ufffd in the ticket"


class Node(BaseModel):
    name: str
    children: list["Node"] = []


def test_req_llm_07_schema_that_does_not_compile_is_refused_with_its_field_and_not_asked_for(
    worker: Make, offline: OfflineModel
) -> None:
    asking = worker()
    with pytest.raises(PermanentError, match=r"Node: children\[\]: Node holds itself") as failed:
        asking.ask(answer=Node)
    assert failed.value.reason == "schema_unsupported"
    assert (offline.calls, asking.calls()) == (0, [])


def test_req_llm_07_schema_that_the_service_refuses_all_the_same_is_asked_for_once(
    worker: Make, offline: OfflineModel
) -> None:
    asking = worker()
    offline.script(error(400, "invalid_request_error", message="the grammar is too large"))
    with pytest.raises(PermanentError) as failed:
        asking.ask()
    assert failed.value.reason == "invalid_request"
    assert [call["outcome"] for call in asking.calls()] == ["invalid_request"]


class Bounded(BaseModel):
    share: float = Field(ge=0, le=1)
    name: str = Field(max_length=9)


def test_req_llm_07_bounds_are_checked_after_and_not_sent() -> None:
    schema = str(output_format(Bounded))
    assert not any(f"'{bound}'" in schema for bound in ("minimum", "maximum", "maxLength"))


def test_null_cache_fields_count_as_zero(worker: Make, offline: OfflineModel) -> None:
    asking = worker()
    nulls = {**USAGE, "cache_creation_input_tokens": None, "cache_read_input_tokens": None}
    offline.script(says(label(), usage=nulls))
    asking.ask()
    assert asking.calls()[0]["cost_micro"] == 26


def test_later_call_succeeds_after_an_overload(worker: Make, offline: OfflineModel) -> None:
    """REQ-LLM-01: the second try is a new request with the same messages, made by whoever retries the work."""
    asking = worker()
    offline.script(error(529, "overloaded_error"))
    with pytest.raises(TransientError):
        asking.ask()
    asking.ask()
    assert offline.requests[0] == offline.requests[1]
    assert [call["outcome"] for call in asking.calls()] == ["overloaded", "ok"]


def test_answer_of_another_server_is_not_taken_for_an_offline_one(
    worker: Make, offline: OfflineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = worker()
    monkeypatch.setattr(model, "OFFLINE", "x-not-there")
    asking.ask()
    assert asking.calls()[0]["provider"] == "compatible"


def test_several_text_blocks_are_one_answer(worker: Make, offline: OfflineModel) -> None:
    text = label()
    blocks = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    offline.script(lambda request: Response(says(blocks)(request)))  # type: ignore[operator, arg-type]
    assert worker().ask().reason == "stolen"
