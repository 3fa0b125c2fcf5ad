"""A body that is not for us is refused at its first delivery: kept whole, with the reason, and nobody waits for it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from local.mappings import failures
from stafette.core.errors import RefusedError
from stafette.core.messages import job_id, read_work
from stafette.relay import recovery
from tests.support import Stack, job_of, running_stack, ticket

JOB = "0" * 26


def text_of(**fields: Any) -> str:
    return json.dumps({"request_id": "refused", "tenant": "acme", **fields})


BODIES = {
    "malformed": ('{"input": {"text": "hello"}', "not_json"),
    "not_json_at_all": ("hello", "not_json"),
    "empty_text": ('""', "not_json"),
    "only_space": (" ", "not_json"),
    "null": ("null", "not_an_object"),
    "array": ("[]", "not_an_object"),
    "array_of_requests": ('[{"input": {"text": "hello"}}]', "not_an_object"),
    "number": ("17", "not_an_object"),
    "truth": ("true", "not_an_object"),
    "empty_object": ("{}", "unknown_envelope"),
    "wrong_shape": (text_of(input="hello"), "bad_shape"),
    "input_is_an_array": (text_of(input=[1]), "bad_shape"),
    "input_is_null": (text_of(input=None), "bad_shape"),
    "no_text": (text_of(input={}), "bad_shape"),
    "wrong_type": (text_of(input={"text": 17}), "bad_shape"),
    "number_as_text": (text_of(input={"text": "a", "records": "1"}), "bad_shape"),
    "too_many_records": (
        text_of(input={"text": "a", "records": [{"id": str(n)} for n in range(1001)]}),
        "bad_shape",
    ),
    "version_is_text": (text_of(v="1", input={"text": "a"}), "bad_shape"),
    "version_is_zero": (text_of(v=0, input={"text": "a"}), "bad_shape"),
    "version_is_unknown": (text_of(v=99, input={"text": "a"}), "unknown_version"),
    "request_id_is_a_number": (text_of(request_id=1, input={"text": "a"}), "bad_shape"),
    "request_id_is_empty": (text_of(request_id="", input={"text": "a"}), "bad_shape"),
    "tenant_is_strange": (text_of(tenant="a b", input={"text": "a"}), "bad_shape"),
    "unknown_flow": (text_of(flow="nonsense", input={"text": "a"}), "unknown_flow"),
    "nan": ('{"input": {"text": "a", "n": NaN}}', "not_finite"),
    "infinity": ('{"input": {"text": "a", "n": -Infinity}}', "not_finite"),
    "one_e_999": ('{"input": {"text": "a", "n": 1e999}}', "not_finite"),
    "lone_surrogate": ('{"input": {"text": "a\\ud800b"}}', "lone_surrogate"),
    "lone_surrogate_in_a_name": ('{"input": {"text": "a", "\\udc00": 1}}', "lone_surrogate"),
    "nested_300_deep": ('{"input": {"text": ' + "[" * 300 + "]" * 300 + "}}", "too_deep"),
    "nested_100000_deep": ("[" * 100_000, "too_deep"),
    "huge_integer": ('{"input": {"text": "a", "n": ' + "9" * 5000 + "}}", "not_json"),
    "huge_integer_as_version": ('{"v": ' + "9" * 400 + ', "input": {}}', "unknown_version"),
}

# Between stages: what only our own functions write.
BETWEEN = {
    "malformed": ("{", "not_json"),
    "null": ("null", "not_an_object"),
    "request": (text_of(input={"text": "a"}), "unknown_envelope"),
    "unknown_kind": (text_of(kind="nonsense"), "unknown_envelope"),
    "kind_is_an_array": (text_of(kind=["handoff"]), "unknown_envelope"),
    "no_fields": (text_of(kind="handoff"), "bad_shape"),
    "newer": (text_of(v=2, kind="handoff", job_id=JOB), "unknown_version"),
    "nan": ('{"kind": "handoff", "wake": NaN}', "not_finite"),
    "wake_is_text": (
        text_of(kind="handoff", job_id=JOB, to="route", handoff="route", stage="asked", wake="1"),
        "bad_shape",
    ),
    "no_such_job": (
        text_of(kind="handoff", job_id=JOB, to="route", handoff="route", stage="asked"),
        "unknown_job",
    ),
    "anothers": (
        text_of(kind="handoff", job_id=JOB, to="act", handoff="act", stage="drafted"),
        "wrong_queue",
    ),
    "notice": (
        text_of(kind="notice", job_id=JOB, to="route", event="ended", n=0, flow="", stage="x")[:-1]
        + ', "status": "done"}',
        "wrong_queue",
    ),
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


def delivered(stack: Stack, queue: str, bodies: dict[str, tuple[str, str]]) -> None:
    """Puts bodies on a queue among good requests; all of them are settled by one delivery each."""
    sent = {stack.send(queue, body): (body, reason) for body, reason in bodies.values()}
    while outcome := stack.machine.step():
        if outcome.function == queue:
            records = outcome.event["Records"]
            for record in records:
                assert record["attributes"]["ApproximateReceiveCount"] == "1"
            batch = {record["messageId"] for record in records}
            assert failures(outcome, batch, partial=True) == set()
    stack.machine.run_until_quiet()
    assert stack.machine.backlog() == {}
    kept = {record["id"]: record for record in stack.dead()}
    for message_id, (body, reason) in sent.items():
        record = kept[message_id]
        assert (record["reason"], record["function"]) == (reason, queue), body[:100]
        assert stack.kept_body(message_id) == body
        assert record["detail"]
        assert record["origin"] == message_id


def test_every_kind_of_bad_request_is_kept_whole_after_one_delivery_and_its_neighbours_get_done(
    stack: Stack,
) -> None:
    good, bodies = [], list(BODIES.items())
    for first in range(0, len(bodies), 8):
        good.append(stack.ask(f"neighbour-{first}", 0))
        delivered(stack, "intake", dict(bodies[first : first + 8]))
    assert [stack.head(job_id)["status"] for job_id in good] == ["done"] * len(good)


def test_every_kind_of_bad_message_between_stages_is_kept_whole_after_one_delivery(
    stack: Stack,
) -> None:
    job_id = stack.ask("between", 0)
    stack.machine.step()
    delivered(stack, "route", BETWEEN)
    assert stack.head(job_id)["status"] == "done"


@pytest.mark.parametrize("queue", ["classify", "enrich", "enrich_record", "draft", "act", "notify"])
def test_no_queue_takes_what_is_none_of_its_messages(stack: Stack, queue: str) -> None:
    wrong = text_of(kind="handoff", job_id=JOB, to="x", handoff="nobody", stage="asked")
    delivered(stack, queue, {"malformed": BETWEEN["malformed"], "wrong": (wrong, "wrong_queue")})


def test_a_large_body_is_kept_whole(stack: Stack) -> None:
    body = "{" + "é" * 100_000
    message_id = stack.send("intake", body)
    stack.machine.run_until_quiet()
    [record] = [record for record in stack.dead() if record["id"] == message_id]
    assert stack.kept_body(message_id) == body
    assert "value" not in record


def test_the_same_request_id_with_another_body_is_refused_and_the_job_goes_on(
    stack: Stack,
) -> None:
    job_id = stack.ask("conflict", 0)
    delivered(
        stack,
        "intake",
        {"other": (json.dumps(ticket("conflict", 0, text="Another.")), "request_id_conflict")},
    )
    assert stack.head(job_id)["status"] == "done"
    assert "Another" not in stack.ending(job_id).results["intake"]


def test_the_same_request_asked_again_with_other_spacing_is_the_same_job(stack: Stack) -> None:
    job_id = stack.run("spaced", 0)
    asked = stack.model.calls
    stack.send("intake", json.dumps(ticket("spaced", 0), indent=3, sort_keys=True))
    stack.machine.run_until_quiet()
    assert (stack.model.calls, stack.notices(job_id)) == (asked, ["ended"])


def test_a_request_wrapped_by_sns_or_eventbridge_is_opened(stack: Stack) -> None:
    sns = {
        "Type": "Notification",
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:asks",
        "Message": json.dumps(ticket("by-sns", 0)),
    }
    event = {"detail-type": "asked", "source": "shop", "detail": ticket("by-event", 0)}
    stack.send("intake", sns)
    stack.send("intake", event)
    stack.send("intake", {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"})
    before = len(stack.dead())
    stack.machine.run_until_quiet()
    assert [stack.head(job_of(name))["status"] for name in ("by-sns", "by-event")] == ["done"] * 2
    assert len(stack.dead()) == before


def test_a_message_refused_for_its_version_is_redriven_to_where_it_was(stack: Stack) -> None:
    body = text_of(v=99, input={"text": "a"})
    message_id = stack.send("intake", body)
    stack.machine.run_until_quiet()
    with stack.machine.inside("bury"):
        assert recovery.redrive(message_id) == "sent"
        with pytest.raises(LookupError):
            recovery.redrive("no-such-record")
    assert message_id not in {record["id"] for record in stack.dead()}
    stack.machine.run_until_quiet()
    again = [record for record in stack.dead() if record["origin"] == message_id]
    assert [record["reason"] for record in again] == ["unknown_version"]


def test_a_job_whose_request_was_redriven_keeps_the_id_that_its_first_message_gave_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RefusedError("not today", reason="not_today")

    with monkeypatch.context() as patched:
        patched.setattr("stafette.relay.intake.new_head", refuse)
        body = ticket(None, 0)
        message_id = stack.send("intake", body)
        stack.machine.run_until_quiet()
    with stack.machine.inside("bury"):
        assert recovery.redrive(message_id) == "sent"
    stack.machine.run_until_quiet()
    assert stack.head(job_id("acme", None, message_id))["status"] == "done"


def test_unknown_fields_of_a_message_are_kept() -> None:
    fields = {"job_id": JOB, "tenant": "acme", "to": "route", "handoff": "route", "stage": "asked"}
    message = read_work({"v": 1, "kind": "handoff", **fields, "tomorrow": {"x": 1}})
    assert json.loads(message.to_body())["tomorrow"] == {"x": 1}
