"""A table that is too busy for a while: the write is repeated in place, and the model is not asked again."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from stafette import clock
from stafette.aws.failures import FAILED_CALLS, translated
from stafette.aws.patience import patiently
from stafette.core.errors import PermanentError, TransientError
from tests.support import Stack

CONFLICT = "TransactionConflictException"


def busy(times: int, code: str = CONFLICT):  # type: ignore[no-untyped-def]
    left = [times]

    def fails() -> ClientError | None:
        left[0] -= 1
        return ClientError({"Error": {"Code": code}}, "UpdateItem") if left[0] >= 0 else None

    return fails


@pytest.mark.parametrize("what", ["RESULT#classify", "advance", "PART"])
@pytest.mark.parametrize("code", [CONFLICT, "ThrottlingException"])
def test_req_ddb_05_write_that_meets_a_conflict_is_repeated_and_its_model_call_is_not(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, what: str, code: str
) -> None:
    from stafette.aws import table

    original = table._write
    refused = busy(3, code)

    def write(operation: str, **parameters: object) -> object:
        key = parameters.get("Key") or parameters.get("Item") or {}
        sk = str(key["sk"]["S"])  # type: ignore[index]
        expression = str(parameters.get("UpdateExpression", ""))
        advance = sk == "JOB" and "REMOVE" in expression and "ADD" not in expression
        if (advance if what == "advance" else sk.startswith(what)) and (error := refused()):
            from stafette.aws.failures import translated

            raise translated(error)
        return original(operation, **parameters)

    monkeypatch.setattr(table, "_write", write)
    job_id = stack.run("busy", 2)
    assert stack.head(job_id)["status"] == "done"
    # One for the label, one a record, one for the reply.
    assert len(stack.model.requests) == 4
    assert stack.head(job_id)["attempt"] == 6  # each stage was claimed once
    assert refused() is None


def test_req_ddb_05_it_is_not_repeated_for_ever_nor_past_the_invocation() -> None:
    tries: list[float] = []

    def write() -> None:
        tries.append(clock.now())
        raise TransientError(reason="aws_busy")

    now = [0.0]
    clock.use(lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    try:
        with pytest.raises(TransientError):
            patiently(1000, write)
        assert len(tries) == 6
        with pytest.raises(TransientError):
            patiently(now[0] + 5, write)
        assert len(tries) == 7
    finally:
        clock.use()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ReadTimeoutError(endpoint_url="https://sqs"), "aws_unreachable"),
        (ConnectionClosedError(endpoint_url="https://sqs"), "aws_unreachable"),
        (EndpointConnectionError(endpoint_url="https://sqs"), "aws_unreachable"),
        (ClientError({"Error": {"Code": "Throttled"}}, "Publish"), "aws_busy"),
        (ClientError({"Error": {"Code": "SlowDown"}}, "PutObject"), "aws_busy"),
    ],
)
def test_a_call_that_is_refused_for_now_or_not_answered_is_repeated_in_place(
    error: Exception, reason: str
) -> None:
    assert isinstance(error, FAILED_CALLS)
    tries: list[int] = []

    def write() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise translated(error)
        return "written"

    assert translated(error).reason == reason
    assert isinstance(translated(error), TransientError)
    now = [0.0]
    clock.use(lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    try:
        assert patiently(1000, write) == "written"
    finally:
        clock.use()


@pytest.mark.parametrize("error", [PermanentError(), TransientError(reason="lost_lease")])
def test_other_errors_are_not_repeated(error: Exception) -> None:
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        patiently(clock.now() + 60, write)
    assert tries == [1]
