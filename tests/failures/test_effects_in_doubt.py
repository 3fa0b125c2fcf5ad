"""REQ-IDEM-01: an in-progress record left by a killed attempt, through stafette/aws/effects.py."""

from typing import Any

import pytest

from local.calls import Call, Phase
from local.invocation import ProcessGone
from local.machine import TEMPLATE
from local.template import load
from stafette.aws.effects import (
    GRACE,
    Effect,
    EffectInDoubtError,
    EffectInProgressError,
    NotAppliedError,
    once,
    settle,
)
from stafette.core.errors import TransientError
from stafette.core.run import Run
from tests.failures.conftest import Stack, event, failed
from tests.failures.outside import JOB, Outside, Sent, a_notice, a_run


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.mark.parametrize("in_doubt", ["retry", "look_up", "ask"])
def test_a_killed_try_is_refused_until_its_invocation_is_over_and_then_settled(
    stack: Stack, outside: Outside, in_doubt: str
) -> None:
    """REQ-IDEM-01. DESIGN holds: no doubt is settled before the invocation must be over plus GRACE, so attempt 3
    runs then and not at +2 s; and what it does is what the effect declares."""
    effect = outside.effect(outside.look_up if in_doubt == "look_up" else in_doubt)
    with stack.machine.inside("act"):
        outside.dies = True
        with pytest.raises(ProcessGone):
            once(a_run("t-1", 1.5), effect, None)
        for seconds in (0.0, 2.0, GRACE - 1):
            stack.machine.clock.advance(seconds)
            # Transient: failed, to come back; neither acknowledged nor parked.
            with pytest.raises(
                TransientError, check=lambda e: isinstance(e, EffectInProgressError)
            ):
                once(a_run("t-2"), effect, None)
        assert outside.done == [f"{JOB}/send"]
        stack.machine.clock.advance(1.0)
        if in_doubt == "ask":
            with pytest.raises(EffectInDoubtError):
                once(a_run("t-3"), effect, None)
        else:
            expected = Sent(id="sent-2" if in_doubt == "retry" else "found")
            assert once(a_run("t-3"), effect, None) == expected
            assert once(a_run("t-4"), effect, None) == expected
    assert outside.done == [f"{JOB}/send"] * (2 if in_doubt == "retry" else 1)


def test_a_look_up_that_finds_nothing_does_it_now(stack: Stack, outside: Outside) -> None:
    """REQ-IDEM-01: the try died before the outside heard of it."""

    def die(phase: Phase, call: Call) -> None:
        if phase == "after" and call.operation == "PutItem":
            raise ProcessGone

    with stack.machine.inside("act"):
        remove = stack.machine.on_call(die)
        with pytest.raises(ProcessGone):
            once(a_run("t-1"), outside.effect(outside.look_up), None)
        remove()
        stack.machine.clock.advance(60 + GRACE)
        assert once(a_run("t-2"), outside.effect(outside.look_up), None) == Sent(id="sent-1")
    assert (outside.looked, len(outside.done)) == (1, 1)


@pytest.mark.parametrize("result", [None, Sent(id="by hand")])
def test_a_person_settles_what_is_in_doubt(
    stack: Stack, outside: Outside, result: Sent | None
) -> None:
    """REQ-IDEM-01: `ask` ends in one of two ways."""
    effect = outside.effect("ask")
    with stack.machine.inside("act"):
        outside.dies = True
        with pytest.raises(ProcessGone):
            once(a_run("t-1"), effect, None)
        assert not settle(JOB, "send", result)  # the try may still be under way
        stack.machine.clock.advance(60 + GRACE)
        assert settle(JOB, "send", result)
        assert settle(JOB, "send", result)
        assert not settle(JOB, "send", Sent(id="another word"))
        expected = result or Sent(id="sent-2")
        assert once(a_run("t-2"), effect, None) == expected
        assert not settle(JOB, "send", None)


def test_two_who_settle_a_doubt_at_once_do_not_both_act(stack: Stack, outside: Outside) -> None:
    """REQ-IDEM-01: the record is taken over by one write, on condition of whose it was."""

    def look_up(key: str) -> Sent | None:
        if outside.looked == 0:
            outside.looked = 1
            once(a_run("t-3"), outside.effect("retry"), None)
        return None

    with stack.machine.inside("act"):
        outside.dies = True
        with pytest.raises(ProcessGone):
            once(a_run("t-1"), outside.effect(), None)
        stack.machine.clock.advance(60 + GRACE)
        with pytest.raises(EffectInProgressError):
            once(a_run("t-2"), outside.effect(look_up), None)
    assert len(outside.done) == 2


def test_an_answer_lost_on_the_way_is_no_doubt(stack: Stack, outside: Outside) -> None:
    """REQ-IDEM-01, REQ-DDB-06: a reservation or a take-over of our own goes on."""

    def twice(phase: Phase, call: Call) -> None:
        if phase == "before" and call.operation == "PutItem":
            stack.machine.client("dynamodb").put_item(**call.parameters)

    with stack.machine.inside("act"):
        remove = stack.machine.on_call(twice)
        assert once(a_run("t-1"), outside.effect(name="a"), None) == Sent(id="sent-1")
        remove()
        outside.dies = True
        with pytest.raises(ProcessGone):
            once(a_run("t-1"), outside.effect(name="b"), None)
        stack.machine.clock.advance(60 + GRACE)
        stack.machine.on_call(twice)
        assert once(a_run("t-2"), outside.effect("retry", "b"), None) == Sent(id="sent-3")


def test_what_the_outside_did_not_carry_out_may_be_tried_at_once(
    stack: Stack, outside: Outside
) -> None:
    """REQ-IDEM-01: only its own word for it frees the record; any other error leaves it in doubt."""

    def act(key: str, about: Any) -> Sent:
        raise about

    for name, error, then in (
        ("a", NotAppliedError(), None),
        ("b", TransientError(), EffectInProgressError),
        ("c", ValueError(), EffectInProgressError),
    ):
        with stack.machine.inside("act"):
            with pytest.raises(type(error)):
                once(a_run("t-1"), Effect(name, Sent, act), error)
            if then is None:
                once(a_run("t-2"), outside.effect(name=name), None)
            else:
                with pytest.raises(then):
                    once(a_run("t-2"), outside.effect(name=name), None)
    assert outside.done == [f"{JOB}/a"]


def test_every_record_says_when_its_try_must_be_over(stack: Stack) -> None:
    """REQ-IDEM-01: in milliseconds, within the time of the invocation, from every function with effects. A run
    cannot be made without the end of its invocation, so no handler can forget to register it."""
    stack.run("r1", 0)
    reserved = [
        (call, call.parameters["Item"])
        for call in stack.calls("PutItem", "EFFECT#")
        if call.error is None
    ]
    assert {call.function for call, _ in reserved} == {"act", "notify"}
    now = stack.machine.clock.now()
    for call, item in reserved:
        ends = int(item["in_progress_expiration"]["N"]) / 1000
        assert now - 60 < ends <= now + stack.machine.function(call.function).timeout
    with pytest.raises(TypeError, match="ends"):
        Run(JOB, "0" * 32, "acme", "ticket", "act", 1, "t-1")  # type: ignore[call-arg]


@pytest.mark.parametrize("function", ["act", "notify"])
def test_a_redelivery_falls_after_the_doubt_can_be_settled(function: str) -> None:
    """REQ-IDEM-01."""
    stack = load(TEMPLATE)
    (source,) = (s for s in stack.sources if stack.functions[s.function].name == function)
    visibility = int(stack.queues[source.queue].attributes["VisibilityTimeout"])
    assert visibility > stack.functions[source.function].timeout + GRACE


@pytest.mark.parametrize(("function", "operation"), [("act", "PutObject"), ("notify", "Publish")])
@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_killed_effect_costs_one_receive(
    stack: Stack, function: str, operation: str, phase: Phase
) -> None:
    """REQ-IDEM-01: being refused uses no more than one receive per killed attempt, here none."""

    def outward(call: Call) -> bool:
        return call.operation == operation and "artifacts/" not in str(call.parameters)

    with stack.dying_at(outward, phase):
        job_id = stack.run("r1", 0)
    assert stack.head(job_id)["status"] == "done"
    received = [
        int(record["attributes"]["ApproximateReceiveCount"])
        for outcome in stack.machine.outcomes
        if outcome.function == function
        for record in outcome.event["Records"]
    ]
    assert max(received) == 2
    assert {item["status"] for item in stack.items("EFFECT#")} == {"COMPLETED"}
    assert len(stack.outbox(job_id)) == 2


def test_a_refused_delivery_of_a_notice_is_returned_as_failed(stack: Stack) -> None:
    """REQ-IDEM-01, attempt 2 at +0 s through a handler."""
    notice = a_notice(1)
    with (
        stack.dying_at(lambda call: call.operation == "Publish", "after"),
        pytest.raises(ProcessGone),
    ):
        stack.machine.invoke("notify", event(notice, function="notify"))
    assert failed(stack.machine.invoke("notify", event(notice, function="notify"))) == ["m1"]
    stack.machine.clock.advance(30 + GRACE)
    assert failed(stack.machine.invoke("notify", event(notice, function="notify"))) == []
    assert stack.dead() == []
