"""The offline model through the real SDK: its answers, its tools, its streams, and that it says what it is."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx2
import pytest
from anthropic import transform_schema
from pydantic import BaseModel, Field

from local.model import OfflineModel, UnusedStepError, error, says, serve_model
from local.model_rules import NOTE

USER = [{"role": "user", "content": "What is the weather in Bern?"}]
WEATHER = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 2},
            "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer", "minimum": 1},
        },
        "required": ["city", "unit", "days"],
    },
}


@pytest.fixture
def sdk(offline: OfflineModel) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="k", base_url=offline.base_url, max_retries=0) as client:
        yield client


def create(sdk: anthropic.Anthropic, messages: Any = USER, **options: Any) -> Any:
    request = {"model": "claude-haiku-5-5", "max_tokens": 500, "messages": messages, **options}
    return sdk.messages.create(**request)


def test_same_request_has_the_same_answer_that_says_what_wrote_it(sdk: anthropic.Anthropic) -> None:
    first, second = create(sdk), create(sdk)
    assert first == second
    assert first.content[0].text.endswith(NOTE)
    assert first.model == "claude-haiku-5-5"
    assert first.usage.input_tokens > 0 < first.usage.output_tokens


def test_every_response_carries_the_header_that_says_what_it_is(sdk: anthropic.Anthropic) -> None:
    raw = sdk.messages.with_raw_response.create(model="m", max_tokens=9, messages=USER)  # type: ignore[arg-type]
    assert "not a language model" in raw.headers["x-stafette-offline"]


def test_tool_is_called_once_and_answered_from(sdk: anthropic.Anthropic) -> None:
    asked = create(sdk, tools=[WEATHER])
    assert asked.stop_reason == "tool_use"
    [call] = asked.content
    assert (call.name, call.input) == (
        "get_weather",
        {"city": "offline", "unit": "c", "days": 1},
    )
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [*USER, asked.to_param(), {"role": "user", "content": [result]}]
    answered = create(sdk, history, tools=[WEATHER])
    assert answered.stop_reason == "end_turn"
    assert "sunny" in answered.content[0].text


@pytest.mark.parametrize(
    ("text", "choice", "stop"),
    [
        ("Tell me a story", {"type": "auto"}, "end_turn"),
        ("Tell me a story", {"type": "any"}, "tool_use"),
        ("Tell me a story", {"type": "tool", "name": "get_weather"}, "tool_use"),
        ("The weather, please", {"type": "auto"}, "tool_use"),
        ("The weather, please", {"type": "none"}, "end_turn"),
    ],
)
def test_tool_is_called_when_the_text_or_the_choice_asks_for_it(
    sdk: anthropic.Anthropic, text: str, choice: dict[str, str], stop: str
) -> None:
    messages = [{"role": "user", "content": text}]
    assert create(sdk, messages, tools=[WEATHER], tool_choice=choice).stop_reason == stop


def test_req_llm_05_history_whose_tool_calls_have_no_results_is_refused(
    sdk: anthropic.Anthropic,
) -> None:
    def used(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "get_weather", "input": {}}

    def gave(name: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": name, "content": "x"}

    asked = {"role": "assistant", "content": [used("a"), used("b")]}
    text = {"type": "text", "text": "and?"}
    create(sdk, [*USER, asked, {"role": "user", "content": [gave("a"), gave("b"), text]}])
    for content in ([gave("a")], [text, gave("a"), gave("b")], [text]):
        with pytest.raises(anthropic.BadRequestError):
            create(sdk, [*USER, asked, {"role": "user", "content": content}])


@pytest.mark.parametrize("tools", [[], [WEATHER]])
def test_stream_adds_up_to_the_whole_message(sdk: anthropic.Anthropic, tools: list[Any]) -> None:
    request: Any = {"model": "m", "max_tokens": 500, "messages": USER, "tools": tools}
    with sdk.messages.stream(**request) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    whole = sdk.messages.create(**request)
    assert events.count("content_block_delta") > 1
    assert streamed.to_dict() == whole.to_dict()


class Deep(BaseModel):
    id: int = Field(ge=3)
    kind: Literal["a", "b"]
    at_least_two: list["Leaf"] = Field(min_length=2)
    maybe: str | None
    flag: bool
    day: str = Field(json_schema_extra={"format": "date"})


class Leaf(BaseModel):
    name: str = Field(min_length=12)


def test_any_schema_is_filled_with_values_that_fit(sdk: anthropic.Anthropic) -> None:
    output = {"format": {"type": "json_schema", "schema": transform_schema(Deep)}}
    value = Deep.model_validate_json(create(sdk, output_config=output).content[0].text)
    assert (value.id, value.kind, len(value.at_least_two), value.maybe) == (3, "a", 2, None)


class Found(BaseModel):
    relevant: bool
    summary: str


class Draft(BaseModel):
    subject: str
    body: str
    follow_up: str | None


def filled(sdk: anthropic.Anthropic, answer: type[BaseModel], text: str) -> Any:
    output = {"format": {"type": "json_schema", "schema": transform_schema(answer)}}
    messages = [{"role": "user", "content": text}]
    return answer.model_validate_json(create(sdk, messages, output_config=output).content[0].text)


@pytest.mark.parametrize(
    ("record", "relevant"),
    [
        ('{"order": "A-1001", "status": "shipped"}', True),
        ('{"order": "B-2002", "status": "open"}', False),
    ],
)
def test_record_is_relevant_when_it_shares_a_number_with_the_ticket(
    sdk: anthropic.Anthropic, record: str, relevant: bool
) -> None:
    found = filled(sdk, Found, f"Ticket:\nWhere is order A-1001?\n\norder X:\n{record}")
    assert found.relevant is relevant
    assert found.summary.endswith(NOTE)
    assert "Where is" not in found.summary


def test_draft_gives_the_findings_and_a_follow_up_and_says_who_wrote_it(
    sdk: anthropic.Anthropic,
) -> None:
    text = f"My card was stolen.\ncategory: card\nurgency: high\n- It was ordered in May. {NOTE}"
    draft = filled(sdk, Draft, text)
    assert draft.subject == "About your card"
    assert "It was ordered in May." in draft.body
    assert draft.body.endswith(NOTE)
    assert draft.follow_up == "Look into your card of this customer"
    assert filled(sdk, Draft, "What are your hours?").follow_up is None


def test_answer_longer_than_max_tokens_is_cut_off(sdk: anthropic.Anthropic) -> None:
    assert create(sdk, max_tokens=5).stop_reason == "max_tokens"


def test_script_comes_first_and_then_the_rules_again(
    sdk: anthropic.Anthropic, offline: OfflineModel
) -> None:
    offline.script(error(529, "overloaded_error"), says("scripted", "stop_sequence"))
    with pytest.raises(anthropic.OverloadedError):
        create(sdk)
    assert create(sdk).content[0].text == "scripted"
    assert create(sdk).content[0].text.endswith(NOTE)
    assert offline.calls == 3


def test_script_that_nobody_used_up_fails_the_test() -> None:
    with pytest.raises(UnusedStepError, match="1 scripted"):
        with serve_model() as model:
            model.script(says("never asked for"))


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"model": "m"}', "\xff"])
def test_request_that_is_no_request_is_refused(sdk: anthropic.Anthropic, body: str) -> None:
    with pytest.raises(anthropic.BadRequestError):
        sdk.post("/v1/messages", cast_to=object, content=body.encode("latin-1"))


def test_request_without_a_key_is_refused_as_the_api_would(offline: OfflineModel) -> None:
    with httpx2.Client() as client:
        response = client.post(f"{offline.base_url}/v1/messages", content=json.dumps({}))
    assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")


def test_tokens_are_counted_as_they_will_be_billed(sdk: anthropic.Anthropic) -> None:
    counted = sdk.messages.count_tokens(model="m", messages=USER)  # type: ignore[arg-type]
    assert counted.input_tokens == create(sdk, model="m").usage.input_tokens
