"""What the router is told: the same for all requests, but for what people of the tenant said of earlier ones."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.catalog import ANSWERS, FLOWS, REST, Asked, takers
from stafette.agent import definition, route
from stafette.agent.definition import NOBODY, DefinitionError
from stafette.agent.route import MOST_READ, MOST_SHOWN, Place
from stafette.aws.feedback import Feedback
from stafette.core.errors import RefusedError

AMONG = (
    Place("cards", "ticket", "Cards.", ("my card is gone",)),
    Place("trips", "ticket", "Trips."),
)
FILE = "---\nname: {name}\ndescription: For {name}.\nmodel: haiku\n{more}---\nYou work.\n"


def written(folder: Path, name: str, more: str) -> None:
    (folder / f"{name}.md").write_text(FILE.format(name=name, more=more))


def said(text: str, agent: str) -> Feedback:
    return Feedback("acme", "j", text, "cards", agent, "anna", 1.0)


def lines_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_places_are_the_agents_whose_files_name_a_flow_in_order(tmp_path: Path) -> None:
    written(tmp_path, "trips", "flow: ticket\n")
    written(tmp_path, "cards", "flow: ticket\nexamples: [my card is gone]\n")
    written(tmp_path, "sorter", "")
    found = route.places({"ticket"}, tmp_path)
    assert [(p.agent, p.flow, p.examples) for p in found] == [
        ("cards", "ticket", ("my card is gone",)),
        ("trips", "ticket", ()),
    ]


def test_flow_that_there_is_not_is_named_with_file_and_field(tmp_path: Path) -> None:
    written(tmp_path, "cards", "flow: tickets\n")
    with pytest.raises(DefinitionError, match=r"agents/cards\.md: flow: there is no flow tickets"):
        route.places({"ticket"}, tmp_path)


@pytest.mark.parametrize(
    ("name", "more", "fault"),
    [
        ("cards", "examples: [a]\n", "examples: .*name its flow too"),
        ("cards", "flow: ticket\nexamples: ['']\n", r"examples\.0: "),
        ("cards", "flow: ticket\nexamples: [1]\n", r"examples\.0: "),
        ("cards", "flow: ticket\nexamples: a request\n", "examples: "),
        ("cards", "flow: Ticket 1\n", "flow: "),
        (NOBODY, "flow: ticket\n", "flow: .*choose another name"),
    ],
)
def test_wrong_field_of_a_place_is_named_with_its_file(
    tmp_path: Path, name: str, more: str, fault: str
) -> None:
    written(tmp_path, name, more)
    with pytest.raises(DefinitionError, match=rf"agents/{name}\.md: {fault}"):
        definition.read(tmp_path / f"{name}.md")


def test_the_agents_that_ship_can_be_routed_to_and_the_rest_is_one_of_them() -> None:
    found = {place.agent for place in route.places(FLOWS)}
    assert {flow.agent for flow in FLOWS.values()} | {REST} <= found
    assert len(found) > 1


def test_every_agent_that_ships_says_what_it_answers_or_stands_behind_one_that_does() -> None:
    behind = {
        agent.name for name in (*ANSWERS, route.ROUTER) for agent in definition.chain(name)[1:]
    }
    assert set(definition.names()) == {*ANSWERS, route.ROUTER, *behind}


def test_answer_is_one_of_the_agents_or_none_and_has_a_confidence() -> None:
    answer = route.answer_of(("cards", "trips"))
    assert answer.model_validate({"agent": NOBODY, "confidence": 1}).agent == NOBODY
    for wrong in ({"agent": "other", "confidence": 1}, {"agent": "cards"}):
        with pytest.raises(ValidationError):
            answer.model_validate(wrong)


def test_briefing_is_a_line_an_agent_and_does_not_change_from_request_to_request() -> None:
    told = route.briefing(AMONG)
    assert told == route.briefing(AMONG)
    assert lines_of(told) == [
        {"agent": "cards", "for": "Cards.", "examples": ["my card is gone"]},
        {"agent": "trips", "for": "Trips."},
    ]


def test_examples_are_what_people_said_but_for_agents_that_are_gone() -> None:
    known = [said("where is it", "trips"), said("old", "gone"), said("weather?", NOBODY)]
    assert lines_of(route.examples(known, AMONG)) == [
        {"agent": "trips", "request": "where is it"},
        {"agent": NOBODY, "request": "weather?"},
    ]
    assert route.examples([said("old", "gone")], AMONG) == ""


@given(st.text(min_size=1))
def test_an_example_is_one_line_whatever_its_writer_wrote(text: str) -> None:
    told = route.examples([said(text, "trips")], AMONG)
    assert len(told.split("\n")) == 2
    [line] = lines_of(told)
    assert line["agent"] == "trips"
    assert len(str(line["request"])) <= MOST_SHOWN


@given(st.text(), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3))
def test_of_any_input_something_is_shown_and_never_too_much(
    text: str, more: dict[str, int]
) -> None:
    assert route.about({**more, "text": text}) == text[:MOST_READ]
    assert len(route.about({"text": text * 50_000})) <= MOST_READ
    assert "text" in more or json.loads(route.about(more)) == more


def test_request_that_names_no_flow_is_taken_by_every_flow_that_it_fits() -> None:
    assert set(takers(Asked(input={"text": "hello"}))) == {"ticket"}
    with pytest.raises(RefusedError) as refused:
        takers(Asked(input={"text": ""}))
    assert refused.value.reason == "bad_shape"
    with pytest.raises(RefusedError) as refused:
        takers(Asked(flow="none_such", input={"text": "hello"}))
    assert refused.value.reason == "unknown_flow"
