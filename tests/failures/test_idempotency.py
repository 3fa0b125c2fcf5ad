"""REQ-IDEM-02 to 05: keys, results and batches of effects, each done at most once."""

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
from stafette.aws import clients, effects, keys
from stafette.aws.effects import (
    GRACE,
    Effect,
    once,
)
from stafette.core.errors import BlockedError, PermanentError
from tests.failures.conftest import Stack, aws_error, event, failed
from tests.failures.outside import JOB, Outside, Sent, a_notice, a_run


@pytest.fixture
def outside() -> Outside:
    return Outside()


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


def test_a_process_that_did_many_effects_sends_the_requests_of_one_that_did_none(
    stack: Stack, outside: Outside
) -> None:
    """All calls of a warm process share a client: what each effect leaves on it makes every later call slower."""
    agents: list[list[str]] = []

    def see(request: Any, **_: Any) -> None:
        agents.append(request.headers.get_all("User-Agent"))

    with stack.machine.inside("act"):
        client = clients.dynamodb()
        client.meta.events.register_last("request-created", see)
        for n in range(5):
            once(a_run(f"t-{n}"), outside.effect(name=f"send-{n}"), n)
        client.meta.events.unregister("request-created", see)
    assert len(agents) == 10
    assert agents[-1] == agents[0] != []


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
    assert isinstance(results[1], BlockedError)


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
