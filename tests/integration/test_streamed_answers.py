"""Answers that may be long are streamed: the same value, the same errors, and a record of when the first piece came."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from local.model import OfflineModel, Response, error, says, thinks
from local.model_answers import message
from stafette.agent import model
from stafette.core.errors import PermanentError, StafetteError, ThrottledError, TransientError
from tests.integration.conftest import Time

Make = Callable[..., Any]
GOOD = {"category": "card", "urgency": "high", "confidence": 0.9, "reason": "stolen" * 20}
ASKED = {"model": "claude-haiku-5-5", "messages": [], "max_tokens": 1}


def whole(**how: Any) -> Response:
    return Response(message(ASKED, json.dumps(GOOD)), **how)


@pytest.fixture
def long(agent: Callable[..., str]) -> str:
    """An agent whose answers may be long."""
    return agent("long", f"max_tokens: {model.STREAMED + 1}")


def test_only_an_answer_that_may_outlast_a_call_is_streamed(
    worker: Make, offline: OfflineModel, agent: Callable[..., str], long: str
) -> None:
    agent("short", f"max_tokens: {model.STREAMED}")
    asking = worker()
    values = [asking.ask(agent=name).model_dump() for name in ("short", long)]
    assert values[0] == values[1]
    assert ["stream" in request for request in offline.requests] == [False, True]
    short, streamed = asking.calls()
    assert "first_token_ms" not in short
    assert 0 <= streamed["first_token_ms"] <= streamed["latency_ms"]
    same = ("input", "output", "cache_read", "cache_write", "cost_micro", "outcome", "provider")
    assert [short[name] for name in same] == [streamed[name] for name in same]


def test_first_piece_is_timed_apart_from_the_whole(
    worker: Make, offline: OfflineModel, long: str
) -> None:
    offline.script(whole(delay=0.2, pause=0.4))
    asking = worker()
    assert asking.ask(agent=long).model_dump() == GOOD
    [call] = asking.calls()
    assert call["first_token_ms"] >= 200
    assert call["latency_ms"] - call["first_token_ms"] >= 350


def test_thought_counts_as_the_first_piece_and_is_no_part_of_the_value(
    worker: Make, offline: OfflineModel, long: str
) -> None:
    blocks = [thinks("Is it a card? " * 10), {"type": "text", "text": json.dumps(GOOD)}]
    offline.script(says(blocks))
    asking = worker()
    assert asking.ask(agent=long).model_dump() == GOOD
    assert "first_token_ms" in asking.calls()[0]


@pytest.mark.parametrize(
    ("step", "kind", "reason"),
    [
        (error(400, "invalid_request_error"), PermanentError, "invalid_request"),
        (error(401, "authentication_error"), PermanentError, "model_auth"),
        (error(429, "rate_limit_error", {"retry-after": "7"}), ThrottledError, "rate_limited"),
        (error(529, "overloaded_error"), ThrottledError, "overloaded"),
        (error(500, "overloaded_error"), ThrottledError, "overloaded"),
        (error(503, "api_error"), TransientError, "model_error"),
        (
            Response(b"<html>", 502, {"content-type": "text/html"}),
            TransientError,
            "model_error",
        ),
        (
            Response(b"<html>", 200, {"content-type": "text/html"}),
            TransientError,
            "model_broken_answer",
        ),
        (Response(b'{"cut": ', 200), TransientError, "model_broken_answer"),
        (Response({"type": "other"}, 200), TransientError, "model_broken_answer"),
    ],
    ids=[
        *("400", "401", "429", "529", "500", "503", "proxy", "proxy-200", "half-json", "other"),
    ],
)
def test_error_before_the_stream_begins_means_what_it_means_of_any_call(
    worker: Make,
    offline: OfflineModel,
    long: str,
    step: Response,
    kind: type[StafetteError],
    reason: str,
) -> None:
    asking = worker()
    offline.script(step)
    with pytest.raises(kind) as failed:
        asking.ask(agent=long)
    assert (type(failed.value), failed.value.reason, offline.calls) == (kind, reason, 1)
    [call] = asking.calls()
    assert (call["outcome"], call["cost_micro"]) == (reason, 0)
    assert "first_token_ms" not in call


@pytest.mark.parametrize(
    ("breaks", "kind", "reason"),
    [
        ("overloaded_error", ThrottledError, "overloaded"),
        ("rate_limit_error", ThrottledError, "rate_limited"),
        ("api_error", TransientError, "model_error"),
    ],
)
def test_req_llm_01_error_in_mid_stream_comes_back_and_may_have_been_billed(
    worker: Make,
    offline: OfflineModel,
    long: str,
    passing: Time,
    breaks: str,
    kind: type[StafetteError],
    reason: str,
) -> None:
    asking = worker()
    offline.script(whole(breaks=breaks))
    with pytest.raises(kind) as failed:
        asking.ask(agent=long)
    assert (type(failed.value), failed.value.reason, offline.calls) == (kind, reason, 1)
    [call] = asking.calls()
    assert (call["outcome"], call["usage_incomplete"]) == (reason, True)
    assert call["first_token_ms"] >= 0
    assert "value" not in call
    passing.pass_by(60)
    again = worker(attempt=2)
    assert again.ask(agent=long).category == "card"
    asked = [json.dumps(request["messages"]) for request in offline.requests]
    assert asked[0] == asked[1]  # nothing of the half answer is in the next request


@pytest.mark.parametrize(
    ("ends", "kind", "reason"),
    [
        ("early", TransientError, "model_connection"),
        ("quietly", PermanentError, "no_stop_reason"),
    ],
)
def test_stream_that_comes_to_no_end_is_no_answer(
    worker: Make,
    offline: OfflineModel,
    long: str,
    ends: Any,
    kind: type[StafetteError],
    reason: str,
) -> None:
    asking = worker()
    offline.script(whole(ends=ends))
    with pytest.raises(kind) as failed:
        asking.ask(agent=long)
    assert (failed.value.reason, offline.calls) == (reason, 1)


@pytest.mark.parametrize("ends", ["silent", None])
def test_stream_is_given_up_when_the_time_of_the_whole_call_is_over(
    worker: Make, offline: OfflineModel, long: str, ends: Any
) -> None:
    """Each of its waits is shorter than the call may be; together they are not."""
    asking = worker(seconds=model.MARGIN + model.SHORTEST + 0.2)
    offline.script(whole(ends=ends, delay=1.5, pause=30.0 if ends is None else 0.0))
    with pytest.raises(TransientError) as failed:
        asking.ask(agent=long)
    # Not by the SDK, which would wait as long again for the next piece.
    assert str(failed.value) == "the model's answer was not whole in time"
    [call] = asking.calls()
    assert (call["outcome"], call["usage_incomplete"]) == ("model_timeout", True)
