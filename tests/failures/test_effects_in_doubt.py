"""REQ-IDEM-01: an in-progress record left by a killed attempt, through stafette/aws/effects.py."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from local.calls import Call, Phase
from local.invocation import ProcessGone
from local.machine import TEMPLATE
from local.template import load
from stafette.aws.effects import (
    GRACE,
    Effect,
    EffectInProgressError,
    NotAppliedError,
    form_of,
    once,
)
from stafette.core.errors import BlockedError, TransientError
from stafette.core.form import Form
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
            with pytest.raises(BlockedError):
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


def asked(run: Run, effect: Effect[Any], about: Any = None) -> Form:
    """The form that an effect in doubt puts to a person."""
    with pytest.raises(BlockedError) as blocked:
        once(run, effect, about)
    return blocked.value.form


def left_in_doubt(stack: Stack, outside: Outside, effect: Effect[Any], run: Run) -> None:
    """A try that is done, but dies before its record says so; its invocation is over."""
    outside.dies = True
    with pytest.raises(ProcessGone):
        once(run, effect, {"to": "a@b.c"})
    stack.machine.clock.advance(60 + GRACE)


@pytest.mark.parametrize("done", [True, False])
def test_a_person_is_given_the_facts_and_settles_what_is_in_doubt(
    stack: Stack, outside: Outside, done: bool
) -> None:
    """REQ-IDEM-01: `ask` ends in one of two ways."""
    effect = outside.effect("ask")
    with stack.machine.inside("act"):
        left_in_doubt(stack, outside, effect, a_run("t-1"))
        form = asked(a_run("t-2"), effect, {"to": "a@b.c"})
        assert form == asked(
            a_run("t-3"), effect, {"to": "a@b.c"}
        )  # asked once, however often it runs
        over = datetime.fromtimestamp(stack.machine.clock.now() - GRACE, UTC)
        assert form.facts == {
            "effect": "send",
            "key": f"{JOB}/send",
            "about": {"to": "a@b.c"},
            "began": (over - timedelta(seconds=60)).isoformat(timespec="seconds"),
            "over": over.isoformat(timespec="seconds"),
        }
        answers = {form.name: {"done": True, "result": {"id": "x"}} if done else {"done": False}}
        expected = Sent(id="x") if done else Sent(id="sent-2")
        assert once(replace(a_run("t-4"), answers=answers), effect, None) == expected
        assert once(a_run("t-5"), effect, None) == expected
    assert len(outside.done) == (1 if done else 2)


def test_what_a_person_said_of_one_try_is_not_said_of_the_next(
    stack: Stack, outside: Outside
) -> None:
    """REQ-IDEM-01: "it was not done" lets one try act. When that one is cut off too, it is another doubt."""
    effect = outside.effect("ask")
    with stack.machine.inside("act"):
        left_in_doubt(stack, outside, effect, a_run("t-1"))
        first = asked(a_run("t-2"), effect)
        answers = {first.name: {"done": False}}
        left_in_doubt(stack, outside, effect, replace(a_run("t-3"), answers=answers))
        second = asked(replace(a_run("t-4"), answers=answers), effect)
    assert second.name != first.name
    assert len(outside.done) == 2


@pytest.mark.parametrize(
    ("word", "wrong"),
    [
        ("yes", "body: Input should be a valid dictionary or instance of Word"),
        ({"done": "no"}, "done: Input should be a valid boolean"),
        ({"done": True}, "`result` belongs to what was done"),
        ({"done": False, "result": {"id": "x"}}, "`result` belongs to what was done"),
        ({"done": True, "result": {}}, "id: Field required"),
        ({"done": False, "why": "x"}, "why: Extra inputs are not permitted"),
    ],
)
def test_a_word_that_makes_no_sense_is_asked_again_with_what_is_wrong(
    stack: Stack, outside: Outside, word: Any, wrong: str
) -> None:
    """REQ-IDEM-01: it neither acts nor ends the job."""
    effect = outside.effect("ask")
    with stack.machine.inside("act"):
        left_in_doubt(stack, outside, effect, a_run("t-1"))
        form = asked(a_run("t-2"), effect)
        answers = {form.name: word}
        again = asked(replace(a_run("t-3"), answers=answers), effect)
        assert again.name != form.name
        assert wrong in again.facts["wrong"]
        answers[again.name] = {"done": True, "result": {"id": "x"}}
        assert once(replace(a_run("t-4"), answers=answers), effect, None) == Sent(id="x")
    assert len(outside.done) == 1


class Nested(BaseModel):
    """A result with a model of its own."""

    sent: Sent
    copies: list[Sent] = []


@pytest.mark.parametrize(
    ("model", "result", "wrong"),
    [
        (Sent, {"id": "x"}, {"id": 7}),
        (Nested, {"sent": {"id": "x"}}, {"sent": {}}),
    ],
)
def test_the_schema_of_the_form_takes_what_settles_and_refuses_the_rest(
    model: type[BaseModel], result: Any, wrong: Any
) -> None:
    form = form_of(Effect("send", model, lambda key, about: about), "t-1", {})
    valid = Draft202012Validator(form.schema).is_valid
    assert valid({"done": True, "result": result})
    assert valid({"done": False})
    for word in (
        {"done": True, "result": wrong},
        {"done": True},
        {"done": False, "result": result},
        {"done": 1},
        {},
        [],
    ):
        assert not valid(word), word


def test_a_try_that_was_not_answered_and_one_after_it_in_the_same_work_do_not_both_act(
    stack: Stack, outside: Outside
) -> None:
    """REQ-IDEM-01: each call of `once` reserves for itself, also where the invocation and its message are the same."""

    def silent(key: str, about: Any) -> Sent:
        outside.done.append(key)
        raise TransientError("no answer")

    run = a_run("t-1")
    with stack.machine.inside("act"):
        with pytest.raises(TransientError):
            once(run, Effect("send", Sent, silent, "retry"), None)
        with pytest.raises(EffectInProgressError):
            once(run, Effect("send", Sent, silent, "retry"), None)
    assert outside.done == [f"{JOB}/send"]


def test_a_job_waits_until_its_doubt_can_be_settled_and_that_uses_up_no_failure(
    stack: Stack,
) -> None:
    """REQ-IDEM-01: the outside acts and gives no answer. The doubt lasts 70 s, longer than five failures take."""
    silent: list[str] = []

    def give_no_answer(phase: Phase, call: Call) -> None:
        key = str(call.parameters.get("Key"))
        if phase == "after" and call.operation == "PutObject" and key.startswith("outbox/"):
            silent.append(key)
            raise TransientError("no answer")

    stack.machine.on_call(give_no_answer)
    began = stack.machine.clock.now()
    job_id = stack.run("r1", 0)
    assert (stack.head(job_id)["status"], stack.head(job_id).get("reason")) == ("done", None)
    assert len(silent) == len(set(silent)) == len(stack.outbox(job_id)) == 2
    assert stack.machine.clock.now() - began > 2 * (60 + GRACE)


def test_the_late_record_of_a_try_does_not_replace_what_its_doubt_was_settled_with(
    stack: Stack, outside: Outside
) -> None:
    """REQ-IDEM-01: nobody writes over the record but who reserved it last."""

    def slow(key: str, about: Any) -> Sent:
        stack.machine.clock.advance(60 + GRACE)
        known = outside.effect(lambda key: Sent(id="found"))
        assert once(a_run("t-2"), known, None) == Sent(id="found")
        return Sent(id="late")

    with stack.machine.inside("act"):
        with pytest.raises(EffectInProgressError):
            once(a_run("t-1"), Effect("send", Sent, slow), None)
        assert once(a_run("t-3"), outside.effect(), None) == Sent(id="found")


def test_what_was_not_applied_too_late_to_say_so_frees_nothing_that_another_try_holds(
    stack: Stack, outside: Outside
) -> None:
    """REQ-IDEM-01: its try was over, and another one settled it."""

    def slow(key: str, about: Any) -> Sent:
        stack.machine.clock.advance(60 + GRACE)
        known = outside.effect(lambda key: Sent(id="found"))
        assert once(a_run("t-2"), known, None) == Sent(id="found")
        raise NotAppliedError

    with stack.machine.inside("act"):
        with pytest.raises(EffectInProgressError):
            once(a_run("t-1"), Effect("send", Sent, slow), None)
        assert once(a_run("t-3"), outside.effect(), None) == Sent(id="found")
    assert outside.done == []


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
