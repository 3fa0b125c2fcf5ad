"""All that the real service does wrong, by the offline model and through the real SDK, streamed and not."""

import json
import time
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import pytest

from local.model import OfflineModel, Response, error, says, thinks
from local.model_answers import message
from stafette.agent.answer import check_stop
from stafette.agent.failures import translated
from stafette.core.errors import PermanentError, StafetteError, ThrottledError, TransientError

Make = Callable[..., Any]
GOOD = {"category": "card", "urgency": "high", "confidence": 0.9, "reason": "stolen"}
ASKED: Any = {
    "model": "claude-haiku-5-5",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "Tell me a long story, please"}],
}


@pytest.fixture
def sdk(offline: OfflineModel) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        api_key="offline",
        base_url=offline.base_url,
        max_retries=0,
        timeout=httpx2.Timeout(1.0, connect=1.0),
    )


def streamed(sdk: anthropic.Anthropic) -> Any:
    """The whole message of a stream, its errors translated as those of any call."""
    with translated(), sdk.messages.stream(**ASKED) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize(
    ("step", "kind", "reason"),
    [
        (error(400, "invalid_request_error"), PermanentError, "invalid_request"),
        (error(401, "authentication_error"), PermanentError, "model_auth"),
        (error(404, "not_found_error"), PermanentError, "model_not_found"),
        (error(429, "rate_limit_error", {"retry-after": "7"}), ThrottledError, "rate_limited"),
        (error(500, "api_error"), TransientError, "model_error"),
        (error(529, "overloaded_error"), ThrottledError, "overloaded"),
    ],
    ids=["400", "401", "404", "429", "500", "529"],
)
def test_error_before_the_first_byte_means_the_same_streamed_or_not(
    worker: Make,
    offline: OfflineModel,
    sdk: anthropic.Anthropic,
    step: Response,
    kind: type[StafetteError],
    reason: str,
) -> None:
    offline.script(step, step)
    with pytest.raises(kind) as whole:
        worker().ask()
    with pytest.raises(kind) as in_stream:
        streamed(sdk)
    assert whole.value.reason == in_stream.value.reason == reason
    assert offline.calls == 2


@pytest.mark.parametrize(
    ("broken", "kind", "reason"),
    [
        ("overloaded_error", ThrottledError, "overloaded"),
        ("api_error", TransientError, "model_error"),
        ("rate_limit_error", ThrottledError, "rate_limited"),
    ],
)
def test_req_llm_01_error_in_the_middle_of_a_stream_is_classed_by_its_type(
    offline: OfflineModel,
    sdk: anthropic.Anthropic,
    broken: str,
    kind: type[StafetteError],
    reason: str,
) -> None:
    offline.script(Response(message(ASKED, "A long story " * 20), breaks=broken))
    with pytest.raises(kind) as failed:
        streamed(sdk)
    assert failed.value.reason == reason


@pytest.mark.parametrize(
    ("ends", "reason"), [("early", "model_connection"), ("silent", "model_timeout")]
)
def test_stream_that_comes_to_no_end_is_transient(
    offline: OfflineModel, sdk: anthropic.Anthropic, ends: Any, reason: str
) -> None:
    offline.script(Response(message(ASKED, "A long story " * 20), ends=ends))
    with pytest.raises(TransientError) as failed:
        streamed(sdk)
    assert failed.value.reason == reason


def test_stream_that_stops_quietly_has_no_stop_reason_and_is_no_answer(
    offline: OfflineModel, sdk: anthropic.Anthropic
) -> None:
    offline.script(Response(message(ASKED, "A long story " * 20), ends="quietly"))
    half = streamed(sdk)
    assert half.stop_reason is None
    with pytest.raises(PermanentError) as failed:
        check_stop(half)
    assert failed.value.reason == "no_stop_reason"


def test_req_llm_03_tool_call_that_is_cut_off_says_so_streamed_or_not(
    worker: Make, offline: OfflineModel, sdk: anthropic.Anthropic
) -> None:
    cut = {"type": "tool_use", "id": "toolu_1", "name": "send_mail", "input": {"to": "a@b.example"}}
    offline.script(says([cut], "max_tokens"), says([cut], "max_tokens"))
    with pytest.raises(PermanentError) as failed:
        worker().ask()
    assert failed.value.reason == "output_truncated"
    half = streamed(sdk)
    assert half.content[0].input == {"to": "a@b.example"}
    with pytest.raises(PermanentError, match="max_tokens"):
        check_stop(half)


def test_thinking_before_an_answer_is_no_part_of_it_streamed_or_not(
    worker: Make, offline: OfflineModel, sdk: anthropic.Anthropic
) -> None:
    blocks = [
        thinks("Is it a card? " * 10),
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": json.dumps(GOOD)},
    ]
    offline.script(says(blocks), says(blocks))
    assert worker().ask().model_dump() == GOOD
    whole = streamed(sdk)
    assert [block.type for block in whole.content] == ["thinking", "redacted_thinking", "text"]
    assert whole.content[0].thinking == "Is it a card? " * 10
    assert whole.content[0].signature


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (says([], "refusal"), "refused"),
        (says("Wait.", "pause_turn"), "pause_turn"),
        (says("half", "max_tokens"), "output_truncated"),
        (says("half", "model_context_window_exceeded"), "output_truncated"),
    ],
    ids=["refusal", "pause_turn", "max_tokens", "window"],
)
def test_way_to_stop_that_is_no_answer_is_a_failure_of_that_name(
    worker: Make, offline: OfflineModel, step: Any, reason: str
) -> None:
    asking = worker()
    offline.script(step)
    with pytest.raises(PermanentError) as failed:
        asking.ask()
    assert (failed.value.reason, offline.calls) == (reason, 1)


@pytest.mark.parametrize(
    "content",
    [[], "", "{", "[]", json.dumps({**GOOD, "category": "weather"})],
    ids=["no-block", "empty", "half", "a-list", "wrong-schema"],
)
def test_answer_that_is_no_value_is_asked_for_once_more(
    worker: Make, offline: OfflineModel, content: Any
) -> None:
    offline.script(says(content), says(json.dumps(GOOD)))
    asking = worker()
    assert asking.ask().model_dump() == GOOD
    assert [call["outcome"] for call in asking.calls()] == ["invalid_answer", "ok"]


def test_slow_answer_is_waited_for_and_its_time_is_recorded(
    worker: Make, offline: OfflineModel
) -> None:
    offline.script(Response(message(ASKED, json.dumps(GOOD)), delay=0.3))
    began = time.monotonic()
    asking = worker()
    asking.ask()
    assert asking.calls()[0]["latency_ms"] >= 300
    assert time.monotonic() - began >= 0.3
