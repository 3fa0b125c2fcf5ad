"""REQ-SQS-01 to 03 and 07: deliveries, dead letters, partial batch responses, poison messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.calls import Call, Phase
from local.invocation import ProcessGone
from local.machine import TEMPLATE
from local.template import load
from stafette.core.errors import PermanentError, RefusedError, TransientError
from stafette.core.job import MOST_FAILURES
from stafette.relay.batch import Delivery, Return, batch_handler
from tests.failures.conftest import Stack, event, failed

STACK = load(TEMPLATE)
SHIPPED = [
    *TEMPLATE.parent.joinpath("shared").rglob("*.py"),
    *TEMPLATE.parent.joinpath("functions").rglob("*.py"),
]


# --- REQ-SQS-01: second delivery while the first is still running ----------------------------------------


def test_second_delivery_while_the_first_runs_is_returned_and_does_no_work(stack: Stack) -> None:
    """REQ-SQS-01 (a), (b), (c)."""
    job_id = stack.ask("r1", 0)
    stack.run_to("classify")
    batch, twice = stack.take("classify")
    seen: list[Any] = []

    def deliver_again(phase: Phase, call: Call) -> None:
        if phase == "before" and "CALL#" in str(call.parameters) and not seen:
            seen.append(None)
            seen[0] = stack.machine.invoke("classify", twice)

    remove = stack.machine.on_call(deliver_again)
    first = stack.machine.deliver(stack.mapping("classify"), batch)
    remove()
    assert failed(seen[0]) == [batch[0].id]
    assert failed(first.response) == []
    after_first = stack.head(job_id)
    third = stack.machine.invoke("classify", twice)
    assert failed(third) == []
    assert stack.model.calls == 1
    assert stack.head(job_id) == after_first
    assert (
        after_first["won"]["classify"] == 2
    )  # route's attempt, then this one: the second raised none
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"


def test_second_delivery_comes_back_when_the_lease_ends(stack: Stack) -> None:
    """REQ-SQS-01 (b): returned as failed, and not before the worker that holds the work must be over."""
    stack.ask("r1", 0)
    stack.run_to("classify")
    batch, twice = stack.take("classify")

    def die(phase: Phase, call: Call) -> None:
        if phase == "before" and "CALL#" in str(call.parameters):
            raise ProcessGone

    remove = stack.machine.on_call(die)
    assert stack.machine.deliver(stack.mapping("classify"), batch).kind == "killed"
    remove()
    ends = stack.machine.clock.now() + stack.machine.function("classify").timeout
    assert failed(stack.machine.invoke("classify", twice)) == [batch[0].id]
    (waiting,) = stack.machine.backlog()["ClassifyQueue"]
    assert ends <= waiting.until <= ends + 2


@pytest.mark.parametrize("source", STACK.sources, ids=lambda source: source.queue)
def test_a_queue_hides_a_message_for_six_times_what_its_function_may_run(source: Any) -> None:
    """REQ-SQS-01 (d)."""
    visibility = int(STACK.queues[source.queue].attributes["VisibilityTimeout"])
    assert visibility >= 6 * STACK.functions[source.function].timeout + source.window


# --- REQ-SQS-02: dead-lettered without ever being processed ------------------------------------------------


@pytest.mark.parametrize("source", STACK.sources, ids=lambda source: source.queue)
def test_pollers_are_capped_below_the_function_and_receives_are_not_scarce(source: Any) -> None:
    """REQ-SQS-02 (a)."""
    sources = [s for s in STACK.sources if s.function == source.function]
    reserved = STACK.functions[source.function].reserved
    policy = json.loads(STACK.queues[source.queue].attributes["RedrivePolicy"])
    assert 2 <= source.concurrency <= 1000
    assert reserved is None or reserved >= sum(s.concurrency for s in sources)
    assert policy["maxReceiveCount"] >= 5


def test_every_sqs_event_of_the_template_says_how_many_pollers_it_may_have() -> None:
    """REQ-SQS-02 (a): the cap is written, not a default of the machine that plays it."""
    text = TEMPLATE.read_text()
    assert text.count("Type: SQS\n") == len(STACK.sources)
    assert text.count("ScalingConfig: {MaximumConcurrency:") == len(STACK.sources)


def test_a_message_that_was_never_begun_fails_its_job_as_never_started(stack: Stack) -> None:
    """REQ-SQS-02 (b)."""
    job_id = stack.ask("r1", 0)
    stack.run_to("classify")
    for _ in range(5):
        stack.take("classify")  # received, and no function could be started
        stack.machine.clock.advance(361)
    stack.machine.run_until_quiet()
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == ("failed", "never_started")
    assert stack.model.calls == 0


def test_a_message_whose_every_attempt_died_fails_its_job_as_attempts_exhausted(
    stack: Stack,
) -> None:
    """REQ-SQS-02 (b): distinct from never_started."""
    job_id = stack.ask("r1", 0)

    def die(phase: Phase, call: Call) -> None:
        if call.function == "classify" and "CALL#" in str(call.parameters):
            raise ProcessGone

    stack.machine.on_call(die)
    stack.machine.run_until_quiet()
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == ("failed", "attempts_exhausted")
    assert len(stack.machine.crashes) >= MOST_FAILURES


# --- REQ-SQS-03: partial batch response -----------------------------------------------------------------------


def test_one_failed_record_of_two_is_named_exactly(stack: Stack) -> None:
    """REQ-SQS-03."""

    def take(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError

    with stack.machine.inside("intake") as context:
        answer = batch_handler("intake", take)(event("ok", "bad"), context)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m2"}]}


@pytest.mark.parametrize("bad", [{}, {"messageId": "m1"}, {"receiptHandle": "r"}])
def test_an_answer_that_cannot_be_built_raises(stack: Stack, bad: dict[str, str]) -> None:
    """REQ-SQS-03: a record without its id fails the invocation, so that nothing is deleted."""

    def take(delivery: Delivery) -> None:
        raise AssertionError("never called")

    broken = {"Records": [{"eventSource": "aws:sqs", **bad}]}
    with stack.machine.inside("intake") as context:
        if "messageId" in bad:
            answer = batch_handler("intake", take)(broken, context)
            assert failed(answer) == ["m1"]
        else:
            with pytest.raises(KeyError):
                batch_handler("intake", take)(broken, context)


ENDINGS: dict[str, Any] = {
    "done": lambda: None,
    "returned": lambda: Return(5),
    "refused": lambda: _raise(RefusedError()),
    "transient": lambda: _raise(TransientError()),
    "permanent": lambda: _raise(PermanentError()),
    "bug": lambda: _raise(ZeroDivisionError()),
}
FINISHES = {"done", "refused", "permanent"}


def _raise(error: Exception) -> None:
    raise error


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    endings=st.lists(st.sampled_from(sorted(ENDINGS)), min_size=1, max_size=10), twice=st.booleans()
)
def test_the_failed_are_those_that_did_not_finish(
    stack: Stack, endings: list[str], twice: bool
) -> None:
    """REQ-SQS-03, as a property: one key, non-empty ids of the batch, none twice, and exactly the unfinished.

    `twice`: SQS may deliver a message twice in one batch.
    """
    handler = batch_handler("intake", lambda delivery: ENDINGS[delivery.body]())
    batch = event(*endings)
    if twice:
        batch["Records"].append(batch["Records"][0])
    with stack.machine.inside("intake") as context:
        answer = handler(batch, context)
    assert set(answer) == {"batchItemFailures"}
    assert all(set(item) == {"itemIdentifier"} for item in answer["batchItemFailures"])
    expected = [f"m{n}" for n, how in enumerate(endings, 1) if how not in FINISHES]
    assert failed(answer) == expected


# --- REQ-SQS-07: one bad message at the head of a FIFO group -----------------------------------------------------


def test_there_is_no_fifo_queue_to_be_blocked() -> None:
    """REQ-SQS-07 cannot arise: all queues are standard. DESIGN holds where the case asks for the job id as group:
    a group of a standard queue is for fairness, and is the tenant."""
    assert not any(q.attributes.get("FifoQueue") for q in STACK.queues.values())
    assert not any(q.name.endswith(".fifo") for q in STACK.queues.values())
    assert not any("Fifo" in path.read_text() for path in [TEMPLATE, *SHIPPED])


def test_the_group_of_each_message_is_its_tenant(stack: Stack) -> None:
    """REQ-SQS-07: never a constant."""
    for tenant in ("acme", "globex"):
        stack.send(
            "intake", {"request_id": "r1", "tenant": tenant, "input": {"text": "Lost my card!"}}
        )
    stack.machine.run_until_quiet()
    sent = stack.calls("SendMessage")
    assert {call.parameters["MessageGroupId"] for call in sent} == {"acme", "globex"}
    assert all(
        json.loads(call.parameters["MessageBody"])["tenant"] == call.parameters["MessageGroupId"]
        for call in sent
    )


def test_a_poison_message_is_kept_at_its_first_delivery_and_holds_up_nobody(stack: Stack) -> None:
    """REQ-SQS-07: a permanent error parks at once (a DEAD# record, acknowledged); what is behind it runs."""
    bad = stack.send("intake", "{")
    good = stack.ask("r1", 0)
    outcome = stack.machine.step()
    assert outcome is not None
    assert failed(outcome.response) == []
    assert len(outcome.event["Records"]) == 2
    (record,) = stack.dead()
    assert (record["id"], record["reason"]) == (bad, "not_json")
    stack.machine.run_until_quiet()
    assert stack.head(good)["status"] == "done"


def test_a_message_of_a_failed_job_is_acknowledged_without_work(stack: Stack) -> None:
    """REQ-SQS-07: handled according to its job's state."""
    job_id = stack.ask("r1", 0)
    stack.run_to("classify")
    stack.edit((f"JOB#{job_id}", "JOB"), status="failed", reason="test", detail="")
    outcome = stack.machine.step()
    assert outcome is not None
    assert failed(outcome.response) == []
    assert stack.model.calls == 0


def test_a_transient_failure_of_one_record_does_not_stop_the_others(stack: Stack) -> None:
    """REQ-SQS-07: on a standard queue there is no order to keep, so m2 and m3 run and only m1 comes back."""
    done: list[str] = []

    def take(delivery: Delivery) -> None:
        if delivery.id == "m1":
            raise TransientError
        done.append(delivery.id)

    with stack.machine.inside("intake") as context:
        answer = batch_handler("intake", take)(event("1", "2", "3"), context)
    assert (failed(answer), done) == (["m1"], ["m2", "m3"])


def test_shipped_code_was_found() -> None:
    """The searches above and in other files look at something."""
    assert Path(SHIPPED[0]).is_file()
    assert len(SHIPPED) > 30
