"""REQ-BATCH-01 to 03: batches that fail whole, records that are none of ours, events that are no batch."""

import json
from hashlib import sha256
from typing import Any

import pytest

from local.calls import Call, Phase
from stafette import trace
from stafette.core.errors import EventShapeError, ThrottledError
from stafette.relay.batch import Delivery, batch_handler
from tests.failures.conftest import Stack, aws_error, event, failed
from tests.support import job_of, ticket

FUNCTIONS = (
    *("intake", "route", "classify", "enrich", "enrich_record", "draft", "act", "notify", "bury"),
)


# --- REQ-BATCH-01 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_that_fails_whole_is_returned_and_does_not_raise(
    stack: Stack, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """REQ-BATCH-01: all ids, no function error; the next invocation of the same container knows nothing of it."""

    def busy(phase: Phase, call: Call) -> None:
        if call.operation == "PutItem":
            raise aws_error("ThrottlingException", call.operation)

    remove = stack.machine.on_call(busy)
    bodies = [json.dumps(ticket(f"r{n}")) for n in range(size)]
    answer = stack.machine.invoke("intake", event(*bodies))
    remove()
    assert failed(answer) == [f"m{n}" for n in range(1, size + 1)]
    assert "ERROR" not in {record.levelname for record in caplog.records}
    assert failed(stack.machine.invoke("intake", event(bodies[0]))) == []
    assert stack.head(job_of("r0"))["status"] == "active"


def test_a_fault_of_our_own_fails_its_record_and_says_so(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """REQ-BATCH-01: the counterpart: a bug is told apart from a failure of the outside, by level and traceback."""

    def bug(phase: Phase, call: Call) -> None:
        raise ZeroDivisionError

    stack.machine.on_call(bug)
    # The logger is one for the whole process: a command that ran in it before may have made it silent.
    with caplog.at_level("ERROR", trace._logger().name):
        assert failed(stack.machine.invoke("intake", event(json.dumps(ticket("r1"))))) == ["m1"]
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "ZeroDivisionError" in str(record.exc_info)


def test_a_message_that_is_asked_to_come_back_later_comes_back_no_sooner(stack: Stack) -> None:
    def busy(delivery: Delivery) -> None:
        raise ThrottledError(wait=300)

    stack.send("notify", "{}")
    _, event = stack.take("notify")
    with stack.machine.inside("notify") as context:
        assert len(failed(batch_handler("notify", busy)(event, context))) == 1
    [message] = stack.machine.backlog()["NotifyQueue"]
    assert message.until >= stack.machine.clock.now() + 300


# --- REQ-BATCH-02 -------------------------------------------------------------------------------------------

STRANGERS = ["oops", json.dumps({"job_id": 7}), json.dumps({"input": {"text": 7}})]
REASONS = {"m2": "not_json", "m3": "unknown_envelope", "m4": "bad_shape"}


def test_records_that_do_not_fit_are_kept_at_their_first_delivery_and_the_rest_runs(
    stack: Stack,
) -> None:
    """REQ-BATCH-02. DESIGN holds: the body is kept whole in a DEAD# record, not as a hash and 500 characters."""
    answer = stack.machine.invoke("intake", event(json.dumps(ticket("r1")), *STRANGERS))
    assert failed(answer) == []
    assert stack.head(job_of("r1"))["status"] == "active"
    dead = {record["id"]: record for record in stack.dead()}
    assert {name: record["reason"] for name, record in dead.items()} == REASONS
    assert [json.loads(dead[name]["value"]) for name in sorted(dead)] == STRANGERS
    assert "text" in dead["m4"]["detail"]  # where and what
    assert all(record["function"] == "intake" for record in dead.values())


def test_if_parking_fails_the_record_is_failed(stack: Stack) -> None:
    """REQ-BATCH-02: nothing is acknowledged that is not kept."""

    def busy(phase: Phase, call: Call) -> None:
        if "DEAD#" in str(call.parameters):
            raise aws_error("ThrottlingException", call.operation)

    remove = stack.machine.on_call(busy)
    batch = event(json.dumps(ticket("r1")), *STRANGERS)
    assert failed(stack.machine.invoke("intake", batch)) == ["m2", "m3", "m4"]
    remove()
    assert failed(stack.machine.invoke("intake", batch)) == []
    assert len(stack.dead()) == 3


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f != "bury"])
def test_no_function_retries_a_body_that_never_heals(stack: Stack, function: str) -> None:
    """REQ-BATCH-02: one delivery each, on every queue."""
    bodies = ["oops", "{}", '{"kind": "handoff"}', '{"kind": []}', '{"kind": "part", "v": 99}']
    for body in bodies:
        stack.send(function, body)
    stack.machine.run_until_quiet()
    received = [
        record["attributes"]["ApproximateReceiveCount"]
        for outcome in stack.machine.outcomes
        for record in outcome.event["Records"]
    ]
    assert received == ["1"] * len(bodies)
    dead = stack.dead()
    assert len(dead) == len(bodies)
    assert {record["function"] for record in dead} == {function}
    reasons = {record["reason"] for record in dead}
    assert reasons <= {"not_json", "unknown_envelope", "bad_shape", "unknown_version"}


def _reference(stack: Stack, key: str, **given: Any) -> str:
    return json.dumps({"kind": "ref", "key": key, "bytes": 1, "sha256": "0" * 64, **given})


@pytest.mark.parametrize("function", ["intake", "draft"])
@pytest.mark.parametrize(
    ("key", "stored", "reason"),
    [
        ("artifacts/inbox/none", None, "artifact_missing"),
        ("artifacts/inbox/other", b"{}", "artifact_changed"),
        ("outbox/secret", b"{}", "forbidden_ref"),
        ("artifacts/inbox/../../outbox/secret", None, "forbidden_ref"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_at_once(
    stack: Stack, function: str, key: str, stored: bytes | None, reason: str
) -> None:
    """REQ-BATCH-02, for its kind: what can never be read is kept at its first delivery."""
    if stored is not None:
        stack.machine.client("s3").put_object(Bucket=stack.machine.bucket, Key=key, Body=stored)
    answer = stack.machine.invoke(function, event(_reference(stack, key), function=function))
    assert failed(answer) == []
    (record,) = stack.dead()
    assert record["reason"] == reason


def test_a_reference_to_what_is_no_text_is_refused_at_once(stack: Stack) -> None:
    """REQ-BATCH-02: an upload that is not UTF-8."""
    data, key = b"\xff\xfe{}", "artifacts/inbox/latin"
    stack.machine.client("s3").put_object(Bucket=stack.machine.bucket, Key=key, Body=data)
    body = _reference(stack, key, sha256=sha256(data).hexdigest())
    assert failed(stack.machine.invoke("intake", event(body))) == []
    (record,) = stack.dead()
    assert record["reason"] == "not_text"


def test_an_object_that_may_not_be_read_is_as_one_that_is_gone(stack: Stack) -> None:
    """REQ-BATCH-02: S3 says AccessDenied of a missing key to whoever may not list the bucket. moto does not."""

    def denied(phase: Phase, call: Call) -> None:
        if call.operation == "GetObject":
            raise aws_error("AccessDenied", call.operation)

    stack.machine.on_call(denied)
    body = _reference(stack, "artifacts/inbox/none")
    assert failed(stack.machine.invoke("intake", event(body))) == []
    (record,) = stack.dead()
    assert record["reason"] == "artifact_missing"


# --- REQ-BATCH-03 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Records": []},
        {"Records": None},
        {"Records": {"0": {}}},
        {"foo": 1},
        {"Records": [{"eventSource": "aws:s3"}]},
        {"Records": [{"EventSource": "aws:sns"}]},
        {"Records": [None]},
        [],
        [{"eventSource": "aws:sqs"}],
        None,
        "text",
        0,
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_event_that_is_no_batch_raises_and_changes_nothing(
    stack: Stack, function: str, given: Any
) -> None:
    """REQ-BATCH-03."""
    with pytest.raises(EventShapeError):
        stack.machine.invoke(function, given)
    assert stack.machine.calls == []


def test_a_batch_with_one_record_from_elsewhere_runs_none_of_it(stack: Stack) -> None:
    """REQ-BATCH-03."""
    mixed = event(json.dumps(ticket("r1")))
    mixed["Records"].append({"eventSource": "aws:s3"})
    with pytest.raises(EventShapeError):
        stack.machine.invoke("intake", mixed)
    assert stack.machine.calls == []
