"""Limits that all workers share: counted at the model, whoever dies, and whatever the model asks for."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import pytest

from local.calls import Phase
from local.model import OfflineModel, Response, error
from local.model_answers import answer
from stafette.agent import guards
from stafette.aws import keys, table
from stafette.core.budget import Amount
from stafette.core.errors import BlockedError, ThrottledError
from tests.integration.conftest import Worker, an_active_job
from tests.support import Stack, job_of, running_stack

Make = Callable[..., Any]
HAIKU = "claude-haiku-5-5"
NEED = Amount(100, 1000)


def model() -> dict[str, Any]:
    return table.get(keys.limit(HAIKU)) or {}


def taken() -> list[str]:
    return [name for name in model() if name[0] == "s" and name[1:].isdigit()]


def test_slot_of_the_dead_is_free_when_its_invocation_is_over(
    worker: Make, offline: OfflineModel, passing: Any
) -> None:
    for n in range(5):
        guards.enter(worker(seconds=60, part=n).run, HAIKU, 1, NEED)
    with pytest.raises(ThrottledError, match="may be made now") as full:
        worker().ask()
    assert (full.value.reason, offline.calls) == ("model_full", 0)
    assert 0 < full.value.wait < 10
    passing.pass_by(59)
    with pytest.raises(ThrottledError):
        worker().ask()
    passing.pass_by(2)
    worker().ask()
    assert offline.calls == 1


def test_models_are_limited_apart(worker: Make) -> None:
    for n in range(5):
        guards.enter(worker(part=n).run, HAIKU, 1, NEED)
    guards.enter(worker(part=6).run, "claude-sonnet-5-5", 1, NEED)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("MODEL_REQUESTS_PER_MINUTE", "2"), ("MODEL_TOKENS_PER_MINUTE", "2500")],
)
def test_minute_has_room_for_so_much_and_the_next_one_for_as_much_again(
    worker: Make, passing: Any, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    monkeypatch.setenv(setting, value)
    passing.pass_by(60 - passing.now() % 60 + 1)
    for n in range(2):
        guards.enter(worker(part=n).run, HAIKU, 1, NEED)
    with pytest.raises(ThrottledError) as full:
        guards.enter(worker(part=3).run, HAIKU, 1, NEED)
    assert 50 < full.value.wait <= 60
    passing.pass_by(full.value.wait)
    guards.enter(worker(part=3).run, HAIKU, 1, NEED)


def test_tokens_of_a_minute_are_those_that_were_used_once_that_is_known(
    worker: Make, passing: Any
) -> None:
    passing.pass_by(60 - passing.now() % 60 + 1)
    entered = guards.enter(worker().run, HAIKU, 1, NEED)
    assert model()["tokens"] == 1000
    guards.leave(entered, Amount(1, 40), None)
    assert (model()["tokens"], taken()) == (40, [])


def test_req_llm_02_wait_that_one_worker_is_told_of_holds_for_all_of_them(
    worker: Make, offline: OfflineModel, passing: Any
) -> None:
    offline.script(error(429, "rate_limit_error", {"retry-after": "7200"}))
    with pytest.raises(ThrottledError) as told:
        worker(part=1).ask()
    with pytest.raises(ThrottledError) as waits:
        worker(part=2).ask()
    assert (told.value.reason, waits.value.reason) == ("rate_limited", "model_waits")
    assert 7190 < waits.value.wait <= told.value.wait == 7200
    assert offline.calls == 1
    passing.pass_by(7201)
    worker(part=2).ask()


def test_req_llm_01_breaker_opens_on_overload_and_closes_by_itself(
    worker: Make, offline: OfflineModel, passing: Any
) -> None:
    offline.script(*[error(529, "overloaded_error")] * 3)
    for n in range(3):
        with pytest.raises(ThrottledError, match="529"):
            worker(part=n).ask()
    with pytest.raises(ThrottledError) as opened:
        worker(part=4).ask()
    assert (opened.value.reason, offline.calls) == ("model_waits", 3)
    assert 9 < opened.value.wait <= 30
    passing.pass_by(opened.value.wait + 0.1)
    # One call tries whether it is over; the others wait for what becomes of it.
    trying = guards.enter(worker(part=5).run, HAIKU, 1, NEED)
    with pytest.raises(ThrottledError, match="may be made now"):
        worker(part=6).ask()
    guards.leave(trying, Amount(1, 1), None)
    for n in range(5):
        guards.enter(worker(part=10 + n).run, HAIKU, 1, NEED)
    assert model()["overloads"] == 0


def test_breaker_opens_again_when_the_one_that_tries_is_overloaded_too(
    worker: Make, offline: OfflineModel, passing: Any
) -> None:
    offline.script(*[error(529, "overloaded_error")] * 4)
    for n in range(4):
        with pytest.raises(ThrottledError, match="529"):
            worker(part=n).ask()
        passing.pass_by(40 if n >= 2 else 0)
    assert model()["overloads"] == 4
    assert model()["not_before"] + 40 > passing.now() - 1


def test_call_that_no_budget_bears_says_nothing_of_how_the_model_is(
    worker: Make, offline: OfflineModel, passing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline.script(*[error(529, "overloaded_error")] * 3)
    for n in range(3):
        with pytest.raises(ThrottledError, match="529"):
            worker(part=n).ask()
    passing.pass_by(60)
    monkeypatch.setenv("JOB_BUDGET_USD", "0.00001")
    with pytest.raises(BlockedError):
        worker(part=4).ask()
    assert model()["overloads"] == 3


def test_tenant_that_waits_gets_a_slot_before_the_one_that_holds_most_gets_another(
    worker: Make, offline: OfflineModel, calls_table: None
) -> None:
    table.put(keys.head("k1"), an_active_job("k1"))
    held = [guards.enter(worker(part=n).run, HAIKU, 1, NEED) for n in range(5)]
    other = worker(job="k1", tenant="umbrella").run
    with pytest.raises(ThrottledError):
        guards.enter(other, HAIKU, 1, NEED)
    for each in held[:2]:
        guards.leave(each, Amount(), None)
    with pytest.raises(ThrottledError) as shared:
        guards.enter(worker(part=9).run, HAIKU, 1, NEED)
    assert shared.value.reason == "model_shared"
    guards.enter(other, HAIKU, 1, NEED)
    guards.enter(worker(part=9).run, HAIKU, 1, NEED)  # nobody else waits


def test_refused_for_want_of_budget_gives_the_slot_back(
    worker: Make, offline: OfflineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_BUDGET_USD", "0.00001")
    with pytest.raises(BlockedError):
        worker().ask()
    assert taken() == []


# --- before the claim ----------------------------------------------------------------------------------------


@contextmanager
def full(stack: Stack, seconds: float) -> Iterator[None]:
    """The one slot of the small model is held for so long, and a worker of each function has been turned away."""
    stack.ask("first", 1)
    stack.run_until(lambda: waits_for(stack, "classify"))
    with stack.machine.inside("classify"):
        table.put(keys.head("k1"), an_active_job("k1"))
        run = Worker(job="k1", seconds=seconds).run
        guards.enter(run, HAIKU, 1, NEED)
    stack.machine.step()
    assert stack.head(job_of("first"))["wake"] == 1
    yield


def waits_for(stack: Stack, function: str) -> bool:
    return stack.machine.backend.deliverable(stack.machine.queue(function)) > 0


def test_full_model_is_asked_before_the_claim_and_the_job_waits_without_a_try() -> None:
    with running_stack(environment={"MODEL_CONCURRENT": "1"}) as stack, full(stack, 60):
        job_id = stack.ask("second", 0)
        stack.run_until(lambda: waits_for(stack, "classify"))
        before = stack.head(job_id)
        with stack.counting() as ledger:
            stack.machine.step()
        head = stack.head(job_id)
        assert (head["attempt"], head["failures"]) == (before["attempt"], before["failures"])
        assert (head["wake"], head["why"]) == (1, "model_full")
        assert not {"owner", "lease"} & head.keys()
        made = ledger.of("classify")
        assert (made.of(sk="JOB").writes, made.sends, made.failed) == (1, 1, 0)
        assert (made.of(sk="LIMIT").reads, made.of(sk="LIMIT").writes) == (1, 1)  # it queues, once
        assert len(made.costs) == 4
        stack.machine.run_until_quiet()
        assert stack.head(job_id)["status"] == stack.head(job_of("first"))["status"] == "done"
        assert stack.dead() == []


def test_full_model_is_asked_before_a_part_is_claimed() -> None:
    with running_stack(environment={"MODEL_CONCURRENT": "1"}) as stack:
        job_id = stack.ask("parts", 3)
        stack.run_until(lambda: waits_for(stack, "enrich_record"))
        with stack.machine.inside("enrich_record"):
            table.put(keys.head("k1"), an_active_job("k1"))
            guards.enter(Worker(job="k1", seconds=60).run, HAIKU, 1, NEED)
        stack.machine.run_for(1)  # the range, then its parts
        parts = [i for i in stack.partition(f"JOB#{job_id}#enrich#000") if "PART#" in i["sk"]]
        assert [part.get("attempt", 0) for part in parts] == [1, 0, 0]  # the first was turned away
        assert [part["wake"] for part in parts] == [1, 1, 1]
        stack.machine.run_until_quiet()
        assert stack.head(job_id)["status"] == "done"
        assert (stack.dead(), stack.model.calls) == ([], 5)


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("phase", ["before", "after"])
def test_whoever_puts_a_job_off_may_die_at_any_call(number: int, phase: Phase) -> None:
    with running_stack(environment={"MODEL_CONCURRENT": "1"}) as stack, full(stack, 60):
        job_id = stack.ask("second", 0)
        stack.run_until(lambda: waits_for(stack, "classify"))
        with stack.dying("classify", number, phase):
            stack.machine.step()
        stack.machine.run_until_quiet()
        head = stack.head(job_id)
        assert (head["status"], stack.notices(job_id)) == ("done", ["ended"])
        assert stack.model.calls == 2 + 1 + 2


@pytest.mark.slow
def test_job_of_a_hundred_parts_is_done_with_every_fifth_call_told_to_come_back() -> None:
    with running_stack() as stack:
        seen = 0
        lock = Lock()

        def every_fifth(request: Any) -> Response:
            nonlocal seen
            with lock:
                seen += 1
                told = seen % 5 == 0
            if told:
                after = str(random.Random(seen).randint(1, 90))
                return error(429, "rate_limit_error", {"retry-after": after})
            return Response(answer(request))

        stack.model.script(*[every_fifth] * 400)
        job_id = stack.run("every-fifth", 100)
        stack.model.forget()
        assert stack.head(job_id)["status"] == "done"
        assert stack.dead() == []
        parts = [i for i in stack.partition(f"JOB#{job_id}#enrich#000") if "PART#" in i["sk"]]
        assert len(parts) == 100
        assert all("value" in part for part in parts)
        assert seen > 120  # a fifth of them came back
        assert json.dumps(stack.everything(), default=str).count('"rate_limited"') >= 20


def test_agent_whose_file_is_wrong_is_told_of_by_the_work_and_not_by_the_look_before_it(
    worker: Make,
) -> None:
    assert guards.room("nobody")("acme", "job") is None
