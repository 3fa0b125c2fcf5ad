"""REQ-IDEM-01 to 05: effects of the outside world, each done at most once, through stafette/aws/effects.py."""

import inspect
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from local.calls import Call, Phase
from local.machine import TEMPLATE
from local.template import load
from stafette import clock
from stafette.aws import effects, keys
from stafette.aws.effects import (
    GRACE,
    Effect,
    EffectInDoubtError,
    EffectInProgressError,
    NotAppliedError,
    once,
    settle,
)
from stafette.core.errors import PermanentError, TransientError
from stafette.core.messages import Notice
from stafette.core.run import Run
from tests.failures.conftest import Stack, aws_error, event, failed
from tests.support import Died

JOB = "a" * 26


class Sent(BaseModel):
    """What an effect returns."""

    id: str


class Outside:
    """The outside: counts what was done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.dies = False
        self.looked = 0

    def act(self, key: str, about: Any) -> Sent:
        self.done.append(key)
        if self.dies:
            self.dies = False
            raise Died
        return Sent(id=f"sent-{len(self.done)}")

    def look_up(self, key: str) -> Sent | None:
        self.looked += 1
        return Sent(id="found") if key in self.done else None

    def effect(self, in_doubt: Any = "ask", name: str = "send") -> Effect[Sent]:
        return Effect(name, Sent, self.act, in_doubt)


def a_run(owner: str, seconds: float = 60.0, job_id: str = JOB) -> Run:
    ends = clock.now() + seconds
    return Run(job_id, "0" * 32, "acme", "ticket", "act", 1, owner, ends)


@pytest.fixture
def outside() -> Outside:
    return Outside()


# --- REQ-IDEM-01 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_doubt", ["retry", "look_up", "ask"])
def test_a_killed_try_is_refused_until_its_invocation_is_over_and_then_settled(
    stack: Stack, outside: Outside, in_doubt: str
) -> None:
    """REQ-IDEM-01. DESIGN holds: no doubt is settled before the invocation must be over plus GRACE, so attempt 3
    runs then and not at +2 s; and what it does is what the effect declares."""
    effect = outside.effect(outside.look_up if in_doubt == "look_up" else in_doubt)
    with stack.machine.inside("act"):
        outside.dies = True
        with pytest.raises(Died):
            once(a_run("t-1", 1.5), effect, None)
        for seconds in (0.0, 2.0, GRACE - 1):
            stack.machine.clock.advance(seconds)
            with pytest.raises(EffectInProgressError) as refused:
                once(a_run("t-2"), effect, None)
            assert isinstance(
                refused.value, TransientError
            )  # failed, to come back: neither acked nor parked
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
            raise Died

    with stack.machine.inside("act"):
        remove = stack.machine.on_call(die)
        with pytest.raises(Died):
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
        with pytest.raises(Died):
            once(a_run("t-1"), effect, None)
        assert settle(JOB, "send", result)
        expected = result or Sent(id="sent-2")
        assert once(a_run("t-2"), effect, None) == expected
        assert not settle(JOB, "send", result)


def test_two_who_settle_a_doubt_at_once_do_not_both_act(stack: Stack, outside: Outside) -> None:
    """REQ-IDEM-01: the record is taken over by one write, on condition of whose it was."""

    def look_up(key: str) -> Sent | None:
        if outside.looked == 0:
            outside.looked = 1
            once(a_run("t-3"), outside.effect("retry"), None)
        return None

    with stack.machine.inside("act"):
        outside.dies = True
        with pytest.raises(Died):
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
        with pytest.raises(Died):
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
    with stack.dying_at(lambda call: call.operation == "Publish", "after"), pytest.raises(Died):
        stack.machine.invoke("notify", event(notice, function="notify"))
    assert failed(stack.machine.invoke("notify", event(notice, function="notify"))) == ["m1"]
    stack.machine.clock.advance(30 + GRACE)
    assert failed(stack.machine.invoke("notify", event(notice, function="notify"))) == []
    assert stack.dead() == []


# --- REQ-IDEM-02 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("job_id", "name"), [("", "send"), (None, "send"), (JOB, ""), (JOB, None)])
def test_an_effect_without_a_job_or_a_name_is_refused_before_anything(
    stack: Stack, outside: Outside, job_id: Any, name: Any
) -> None:
    """REQ-IDEM-02: a composite key with a part missing. Permanent, so its job fails with this reason."""
    with stack.machine.inside("act"), pytest.raises(PermanentError) as refused:
        once(a_run("t-1", job_id=job_id), outside.effect(name=name), None)
    assert refused.value.reason == "missing_idempotency_key"
    assert (outside.done, stack.machine.calls) == ([], [])


def test_no_message_without_its_ids_reaches_an_effect(stack: Stack) -> None:
    """REQ-IDEM-02: `{}`, one part, null and empty: kept as dead records, acknowledged, nothing is done."""
    good = json.loads(a_notice(1))
    bodies = [{}, *({**good, "job_id": wrong} for wrong in (None, "", 7)), {**good, "event": ""}]
    answer = stack.machine.invoke("notify", event(*map(json.dumps, bodies), function="notify"))
    assert failed(answer) == []
    assert len(stack.dead()) == len(bodies)
    assert stack.machine.published == []


part_of_key = st.text(min_size=1, max_size=20)


@given(st.tuples(part_of_key, part_of_key), st.tuples(part_of_key, part_of_key))
def test_two_effects_share_a_record_only_if_they_are_one(
    a: tuple[str, str], b: tuple[str, str]
) -> None:
    """REQ-IDEM-02."""
    assert (keys.effect(*a) == keys.effect(*b)) == (a == b)


# --- REQ-IDEM-03 --------------------------------------------------------------------------------------------


def test_the_same_work_in_other_spelling_is_the_same_effect(stack: Stack) -> None:
    """REQ-IDEM-03: other spacing, order of keys and message id; the second runs as if it were the first."""
    job_id = stack.ask("r1", 0)
    stack.run_to("act")
    (message,) = stack.machine.backlog()["ActQueue"]
    body = json.loads(message.body)
    other = json.dumps(dict(reversed(body.items())), indent=3, ensure_ascii=False)
    head = stack.head(job_id)
    stack.machine.step()
    stack.machine.run_until_quiet()
    # As if the first delivery had been forgotten: only the effects remember it.
    stack.edit((f"JOB#{job_id}", "JOB"), **{k: head[k] for k in ("stage", "status", "won", "last")})
    stack.edit((f"JOB#{job_id}", "JOB"), next="act", handoff="act")
    stack.send("act", other)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"
    assert set(stack.took_effect(job_id).values()) == {1}
    assert len(stack.items("EFFECT#send_reply")) == 1


def test_a_changed_input_does_not_change_the_record(stack: Stack) -> None:
    """REQ-IDEM-03: an effect that edits what it was given is completed under the key it was begun under."""
    calls: list[dict[str, Any]] = []

    def act(key: str, about: dict[str, Any]) -> Sent:
        about.clear()
        about["other"] = len(calls)
        calls.append(about)
        return Sent(id=key)

    with stack.machine.inside("act"):
        for n in range(2):
            about = {"n": n}
            assert once(a_run(f"t-{n}"), Effect("send", Sent, act), about) == Sent(id=f"{JOB}/send")
    assert len(calls) == 1
    (item,) = stack.items("EFFECT#")
    assert item["status"] == "COMPLETED"


# --- REQ-IDEM-04 --------------------------------------------------------------------------------------------


class Rich(BaseModel):
    """A result of types that JSON does not have."""

    id: UUID
    at: datetime
    price: Decimal


def _three_deliveries(stack: Stack, effect: Effect[Any]) -> list[Any]:
    results: list[Any] = []
    with stack.machine.inside("act"):
        for n in range(3):
            try:
                results.append(once(a_run(f"t-{n}"), effect, None))
            except Exception as error:
                results.append(error)
            stack.machine.clock.advance(60 + GRACE)
    return results


def _returning(result: Any) -> tuple[Callable[[str, Any], Any], list[str]]:
    done: list[str] = []

    def act(key: str, about: Any) -> Any:
        done.append(key)
        return result

    return act, done


def test_a_result_that_is_no_model_is_refused_before_there_is_an_effect() -> None:
    """REQ-IDEM-04 (a)."""
    for kind in (object, dict, 7):
        with pytest.raises(TypeError, match="no pydantic model"):
            Effect("send", kind, _returning(None)[0])  # type: ignore[type-var,arg-type]


def test_an_effect_that_breaks_its_promise_is_still_done_once(stack: Stack) -> None:
    """REQ-IDEM-04 (a): what it returned cannot be stored, so the record stays in doubt and a person is asked."""
    act, done = _returning(object())
    results = _three_deliveries(stack, Effect("send", Sent, act))
    assert len(done) == 1
    assert isinstance(results[1], EffectInDoubtError)


@pytest.mark.parametrize("in_doubt", ["ask", "retry"])
def test_a_result_of_450_kib_is_stored_and_replayed(stack: Stack, in_doubt: Any) -> None:
    """REQ-IDEM-04 (b): the effect cannot be taken back, so its result is kept whatever its size."""
    large = Sent(id="é" * (225 * 1024))
    act, done = _returning(large)
    assert _three_deliveries(stack, Effect("send", Sent, act, in_doubt)) == [large] * 3
    assert len(done) == 1


def test_a_result_of_rich_types_comes_back_equal(stack: Stack) -> None:
    """REQ-IDEM-04 (c)."""
    rich = Rich(
        id=UUID(int=7), at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), price=Decimal("1.10")
    )
    act, done = _returning(rich)
    results = _three_deliveries(stack, Effect("send", Rich, act))
    assert results == [rich] * 3
    assert [str(result.price) for result in results] == ["1.10"] * 3
    assert len(done) == 1


# --- REQ-IDEM-05 --------------------------------------------------------------------------------------------


def a_notice(n: int, job_id: str = JOB) -> str:
    return Notice(
        job_id=job_id,
        tenant="acme",
        to="notify",
        event="ended",
        n=n,
        flow="ticket",
        stage="acted",
        status="done",
    ).to_body()


def test_however_three_messages_are_split_over_deliveries_each_effect_runs_once(
    stack: Stack,
) -> None:
    """REQ-IDEM-05: all 27 ways; the publish of m2 fails at its first delivery, and comes back with the rest."""
    fails: set[str] = set()

    def fail_first(phase: Phase, call: Call) -> None:
        told = json.loads(call.parameters["Message"]) if call.operation == "Publish" else {}
        if phase == "before" and told and told["notice_id"] in fails:
            fails.remove(told["notice_id"])
            raise aws_error("ThrottledException", "Publish")

    stack.machine.on_call(fail_first)
    for number, ways in enumerate(product(("first", "second", "both"), repeat=3)):
        job_id = f"{number:02d}" + "a" * 24
        fails.add(f"{job_id}/notify_ended_2")
        records = event(*(a_notice(n, job_id) for n in (1, 2, 3)), function="notify")["Records"]
        left: set[str] = set()
        for delivery in ("first", "second", "third"):
            batch = [
                record
                for record, way in zip(records, ways, strict=True)
                if way == delivery
                or (way == "both" and delivery != "third")
                or record["messageId"] in left
            ]
            if batch:
                left = set(failed(stack.machine.invoke("notify", {"Records": batch})))
            stack.machine.clock.advance(30 + GRACE)
        assert left == set()
    assert fails == set()
    told = Counter(json.loads(p["message"])["notice_id"] for p in stack.machine.published)
    assert len(told) == 3 * 27
    assert set(told.values()) == {1}


def test_the_guard_is_around_one_effect_and_not_around_a_handler() -> None:
    """REQ-IDEM-05: the record's key is a job and a name; nothing of an event or a batch is in it."""
    assert list(inspect.signature(keys.effect).parameters) == ["job_id", "name"]
    for path in TEMPLATE.parent.joinpath("functions").rglob("*.py"):
        assert "idempotent" not in path.read_text(), path
    assert effects.once is once
