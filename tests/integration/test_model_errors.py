"""What every failure of a provider means for the work: one request, the right class, and a record that says so."""

import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import boto3
import pytest

from local.model import OfflineModel, Response, Step, error, says
from stafette.agent import model
from stafette.agent.failures import translated
from stafette.aws import keys, table
from stafette.aws.calls import Call
from stafette.core.errors import PermanentError, StafetteError, ThrottledError, TransientError

Make = Callable[..., Any]

FIELDS = {field.name for field in fields(Call)}
UNTYPED = b"<html>bad gateway</html>"
PROXY = {"content-type": "text/html"}


def streamed(text: str) -> None:
    with (
        translated(),
        model.client().messages.stream(
            model="claude-haiku-5-5",
            max_tokens=100,
            messages=[{"role": "user", "content": text}],
        ) as stream,
    ):
        for _ in stream:
            pass


@pytest.mark.parametrize(
    ("step", "kind", "reason"),
    [
        (error(429, "rate_limit_error"), ThrottledError, "rate_limited"),
        (error(529, "overloaded_error"), ThrottledError, "overloaded"),
        (error(500, "overloaded_error"), ThrottledError, "overloaded"),
        (error(400, "overloaded_error"), ThrottledError, "overloaded"),
        (error(500, "api_error"), TransientError, "model_error"),
        (error(503, "api_error"), TransientError, "model_error"),
        (error(504, "timeout_error"), TransientError, "model_timeout"),
        (error(409, "conflict_error"), TransientError, "model_error"),
        (error(400, "invalid_request_error"), PermanentError, "invalid_request"),
        (error(413, "request_too_large"), PermanentError, "request_too_large"),
        (error(401, "authentication_error"), PermanentError, "model_auth"),
        (error(403, "permission_error"), PermanentError, "model_auth"),
        (error(402, "billing_error"), PermanentError, "model_billing"),
        (error(404, "not_found_error"), PermanentError, "model_not_found"),
        (error(503, "a_type_of_tomorrow"), TransientError, "model_error"),
        (error(418, "a_type_of_tomorrow"), PermanentError, "invalid_request"),
        (Response(UNTYPED, 502, PROXY), TransientError, "model_error"),
        (Response(UNTYPED, 429, PROXY), ThrottledError, "rate_limited"),
        (Response(UNTYPED, 403, PROXY), PermanentError, "model_auth"),
        (Response({"message": "Bedrock style"}, 424), TransientError, "model_error"),
        (
            Response({"type": "error", "error": {"type": ["odd"]}}, 400),
            PermanentError,
            "invalid_request",
        ),
        (Response(UNTYPED, 200, PROXY), TransientError, "model_broken_answer"),
        (Response(b'{"cut": ', 200), TransientError, "model_broken_answer"),
        (Response({"type": "other"}, 200), TransientError, "model_broken_answer"),
    ],
)
def test_req_llm_01_error_is_classed_by_type_then_status_after_one_request(
    worker: Make, offline: OfflineModel, step: Step, kind: type[StafetteError], reason: str
) -> None:
    asking = worker()
    offline.script(step)
    with pytest.raises(kind) as failed:
        asking.ask()
    assert (type(failed.value), failed.value.reason) == (kind, reason)
    assert offline.calls == 1
    [call] = asking.calls()
    assert (call["outcome"], call["cost_micro"]) == (reason, 0)


@pytest.mark.parametrize(
    ("breaks", "kind"), [("overloaded_error", ThrottledError), ("odd", TransientError)]
)
def test_req_llm_01_overload_in_mid_stream_is_not_judged_by_its_status_200(
    offline: OfflineModel, breaks: str, kind: type[StafetteError]
) -> None:
    offline.script(lambda request: Response(says("half an answer")(request), breaks=breaks))  # type: ignore[operator, arg-type]
    with pytest.raises(kind) as failed:
        streamed("hi")
    assert type(failed.value) is kind
    assert offline.calls == 1


def test_req_llm_02_wait_is_handed_on_and_nobody_sleeps(
    worker: Make, offline: OfflineModel
) -> None:
    offline.script(
        error(529, "overloaded_error", {"retry-after": "2"}),
        error(429, "rate_limit_error", {"retry-after": "3600"}),
    )
    began = time.monotonic()
    for wait in (2.0, 3600.0):
        with pytest.raises(ThrottledError) as failed:
            worker().ask()
        assert failed.value.wait == wait
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "later"])
def test_req_llm_02_bad_wait_falls_back_to_back_off(
    worker: Make, offline: OfflineModel, value: str
) -> None:
    offline.script(error(429, "rate_limit_error", {"retry-after": value}))
    with pytest.raises(ThrottledError) as failed:
        worker().ask()
    assert 10 <= failed.value.wait < 20


def test_req_llm_02_wait_above_the_ceiling_fails_the_work(
    worker: Make, offline: OfflineModel
) -> None:
    offline.script(error(429, "rate_limit_error", {"retry-after-ms": "302539000"}))
    with pytest.raises(PermanentError) as failed:
        worker().ask()
    assert failed.value.reason == "rate_limited"


def test_spending_limit_is_not_waited_for(worker: Make, offline: OfflineModel) -> None:
    code = {"error_code": "enforced_spend_limit_reached"}
    offline.script(error(429, "rate_limit_error", {"retry-after": "2"}, details=code))
    with pytest.raises(PermanentError) as failed:
        worker().ask()
    assert failed.value.reason == "model_billing"


def test_lost_connection_is_transient_and_may_have_been_billed(
    worker: Make, offline: OfflineModel
) -> None:
    def hang_up(request: object) -> Response:
        raise ConnectionResetError

    asking = worker()
    offline.script(hang_up)
    with pytest.raises(TransientError) as failed:
        asking.ask()
    assert failed.value.reason == "model_connection"
    assert offline.calls == 1
    assert asking.calls()[0]["usage_incomplete"] is True


def test_nobody_listening_is_transient(worker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(TransientError) as failed:
        worker().ask()
    assert failed.value.reason == "model_connection"


def test_slow_model_is_given_up_before_the_invocation_ends(
    worker: Make, offline: OfflineModel
) -> None:
    asking = worker(seconds=model.MARGIN + model.SHORTEST + 0.2)
    offline.latency = 30.0
    with pytest.raises(TransientError) as failed:
        asking.ask()
    assert failed.value.reason == "model_timeout"
    [call] = asking.calls()
    assert call["usage_incomplete"] is True
    assert 2000 <= call["latency_ms"] < 4000


def test_too_little_time_makes_no_request_and_no_record(
    worker: Make, offline: OfflineModel
) -> None:
    asking = worker(seconds=model.MARGIN + 1)
    with pytest.raises(TransientError) as failed:
        asking.ask()
    assert failed.value.reason == "no_time_left"
    assert offline.calls == 0
    assert asking.calls() == []


def test_error_says_nothing_that_the_provider_wrote(worker: Make, offline: OfflineModel) -> None:
    offline.script(error(400, "invalid_request_error", message="the prompt was: SECRET"))
    with pytest.raises(PermanentError) as failed:
        worker().ask()
    assert "SECRET" not in str(failed.value)


def test_secret_is_read_where_no_key_is_given(
    worker: Make, offline: OfflineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("MODEL_KEY_SECRET", "stafette/anthropic")
    asking = worker()
    with pytest.raises(TransientError) as failed:
        asking.ask()
    assert failed.value.reason == "model_key"
    boto3.client("secretsmanager").create_secret(Name="stafette/anthropic", SecretString="k1")
    asking.ask()
    assert offline.calls == 1


@pytest.mark.parametrize("written", [False, True], ids=["refused", "answer lost"])
def test_call_whose_record_could_not_be_begun_leaves_a_whole_record_or_none(
    worker: Make, offline: OfflineModel, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    put = table.put

    def failing(key: keys.Key, item: Any, *rest: Any) -> None:
        if written:
            put(key, item, *rest)
        raise TransientError("busy", reason="aws_busy")

    asking = worker()
    with monkeypatch.context() as patch:
        patch.setattr(table, "put", failing)
        with pytest.raises(TransientError):
            asking.ask()
    assert offline.calls == 0
    known = [Call(**{k: v for k, v in each.items() if k in FIELDS}) for each in asking.calls()]
    assert [(each.agent, each.outcome) for each in known] == [("classifier", "aws_busy")] * written
    assert not (table.get(keys.budget("j1")) or {}).get("micro")
