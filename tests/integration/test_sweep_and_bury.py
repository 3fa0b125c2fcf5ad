"""A job that nobody works on any more is pushed or ended: by sweep, by bury, by a person. Each may act twice."""

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from local.calls import Phase
from local.invocation import ProcessGone
from local.model import error
from stafette.core.job import DEADLINE, FIRST_LOOK, MOST_FAILURES, VERSION
from stafette.core.messages import UnknownVersionError
from stafette.relay import recovery
from tests.support import URGENT, Stack, running_stack, ticket

WHOLE = tuple(
    f"EVENT#{name}#0001"
    for name in ("act", "classify", "draft", "enrich", "enrich:join", "intake", "route")
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


def sweep(stack: Stack) -> int:
    return int(stack.machine.invoke("sweep", {})["pushed"])


def assert_done(stack: Stack, job_id: str) -> None:
    ending = stack.ending(job_id)
    assert (ending.stage, ending.status, ending.waits) == ("acted", "done", False)
    assert set(WHOLE) <= set(ending.journal)
    assert (stack.notices(job_id)[-1], stack.machine.backlog()) == ("ended", {})


def assert_failed(stack: Stack, job_id: str, reason: str) -> None:
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == ("failed", reason)
    assert stack.notices(job_id) == ["ended"]
    assert [e["sk"] for e in stack.journal(job_id) if "#job#" in e["sk"]] == ["EVENT#job#0001"]
    assert stack.machine.backlog() == {}


# --- newer code wrote it -------------------------------------------------------------------------------------


def test_a_head_of_newer_code_is_left_as_it_is_by_everybody(stack: Stack) -> None:
    job_id = stack.ask("newer")
    stack.run_until(lambda: queue_of(stack, "enrich_record") in stack.machine.backlog())
    stack.edit((f"JOB#{job_id}", "JOB"), v=VERSION + 1)
    [ranges] = stack.take_away("enrich_record")
    stack.send("enrich_record", ranges)
    stack.ask("newer")  # asked for again
    stack.machine.run_until_quiet()
    kept = [each["function"] for each in stack.dead() if each["reason"] == "unknown_version"]
    assert sorted(kept) == ["enrich_record", "intake"]
    head = stack.head(job_id)
    for act in (lambda: recovery.cancel(job_id, "no"), lambda: recovery.reopen(job_id)):
        with stack.machine.inside("bury"), pytest.raises(UnknownVersionError):
            act()
    stack.send("bury", ranges)
    stack.machine.run_until_quiet()
    assert stack.head(job_id) == head
    assert stack.item(f"JOB#{job_id}#enrich#000", "PART#00000") is None
    stack.edit((f"JOB#{job_id}", "JOB"), v=VERSION)  # the upgrade came
    stack.send("enrich_record", ranges)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"


# --- sweep -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["route", "classify", "enrich", "enrich_record", "draft", "act"])
def test_sweep_pushes_a_job_whose_message_is_lost(stack: Stack, queue: str) -> None:
    job_id = stack.ask(f"lost-{queue}")
    stack.run_until(lambda: queue_of(stack, queue) in stack.machine.backlog())
    assert stack.take_away(queue)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "active"
    stack.machine.clock.advance_to(stack.machine.clock.now() + FIRST_LOOK)
    assert (sweep(stack), sweep(stack)) == (1, 0)
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)


def queue_of(stack: Stack, name: str) -> str:
    return stack.machine.queue(name).logical_id


def test_sweep_holds_back_while_the_queue_has_a_backlog(stack: Stack) -> None:
    job_id = stack.ask("backlog")
    stack.machine.step()
    stack.machine.clock.advance_to(stack.machine.clock.now() + FIRST_LOOK)
    assert sweep(stack) == 0
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)


def test_a_job_that_cannot_be_looked_at_keeps_no_other_from_it(stack: Stack) -> None:
    jobs = [stack.ask(f"broken-{n}") for n in range(4)]
    stack.run_until(lambda: all(exists(stack, job_id) for job_id in jobs))
    stack.take_away("route")
    broken = jobs[1]
    stack.edit((f"JOB#{broken}", "JOB"), stage=7)  # no code of ours wrote that
    stack.machine.clock.advance_to(stack.machine.clock.now() + FIRST_LOOK)
    with pytest.raises(ValueError, match="stage"):
        sweep(stack)
    stack.machine.run_until_quiet()
    for job_id in jobs:
        if job_id != broken:
            assert stack.head(job_id)["status"] == "done"
    stack.edit((f"JOB#{broken}", "JOB"), stage="asked")
    sweep(stack)
    stack.machine.run_until_quiet()
    assert_done(stack, broken)


def test_sweep_makes_up_for_what_a_worker_that_died_after_its_advance_did_not_say(
    stack: Stack,
) -> None:
    job_id = stack.ask("unsaid", text=ticket(None)["input"]["text"] + URGENT)
    stack.run_until(lambda: queue_of(stack, "classify") in stack.machine.backlog())
    [body] = stack.take_away("classify")
    stack.machine.clock.advance_to(stack.machine.clock.now() + FIRST_LOOK - 60)
    stack.send("classify", body)
    with stack.dying_at(
        lambda call: (
            call.parameters.get("Item", {}).get("sk", {}).get("S") == "EVENT#classify#0001"
        ),
        "before",
    ):
        stack.machine.step()
    # Sweep comes before the redelivery, which then finds the job gone on and drops its message.
    stack.machine.clock.advance_to(stack.machine.clock.now() + 61)
    assert sweep(stack) == 1
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)
    assert stack.notices(job_id) == ["classified", "ended"]


def test_a_job_is_stuck_when_a_push_did_not_help_and_not_before(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr("stafette.trace.count", lambda metric, n=1: counted.append(metric))
    job_id = stack.ask("stuck")
    stack.run_until(lambda: queue_of(stack, "act") in stack.machine.backlog())
    seen = []
    for _ in range(3):
        stack.take_away("act")
        stack.machine.clock.advance_to(float(stack.head(job_id)["due"]))
        assert sweep(stack) == 1
        seen.append(counted.count("StuckJobs"))
    assert seen == [0, 1, 2]
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)


def test_a_deadline_ends_a_job_once_within_a_minute_and_says_why(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr("stafette.trace.count", lambda metric, n=1: counted.append(metric))
    job_id = stack.ask("deadline")
    began = stack.machine.clock.now()
    stack.run_until(lambda: queue_of(stack, "act") in stack.machine.backlog())
    while stack.head(job_id)["status"] == "active":
        stack.take_away("act")
        moments = stack.head(job_id)["due"]
        stack.machine.clock.advance_to(float(moments))
        sweep(stack)
    assert stack.machine.clock.now() - began <= DEADLINE + 60
    assert "StuckJobs" in counted
    assert sweep(stack) == 0
    stack.machine.run_until_quiet()
    stack.take_away("act")
    assert_failed(stack, job_id, "deadline")
    assert stack.outbox(job_id) == {}


@pytest.mark.parametrize("ender", ["sweep", "cancel"])
@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("phase", ["before", "after"])
def test_whoever_ends_a_job_may_die_at_any_call_and_the_end_is_told(
    stack: Stack, ender: str, number: int, phase: Phase
) -> None:
    job_id = stack.ask(f"{ender}-dies-{number}-{phase}")
    stack.run_until(lambda: queue_of(stack, "act") in stack.machine.backlog())
    stack.take_away("act")
    if ender == "sweep":
        now = stack.machine.clock.now()
        stack.edit((f"JOB#{job_id}", "JOB"), deadline=now, due=now)
        with stack.dying("sweep", number, phase), suppress(ProcessGone):
            sweep(stack)
    else:
        with (
            stack.machine.inside("bury"),
            stack.dying("bury", number, phase),
            suppress(ProcessGone),
        ):
            recovery.cancel(job_id, "not wanted")
    status, reason = ("failed", "deadline") if ender == "sweep" else ("cancelled", "cancelled")
    if stack.head(job_id)["status"] == "active":  # died before it could: a person says it again
        with stack.machine.inside("bury"):
            recovery.cancel(job_id, "not wanted")
        status, reason = "cancelled", "cancelled"
    for _ in range(4):
        stack.machine.clock.advance_to(stack.machine.clock.now() + 2 * FIRST_LOOK)
        sweep(stack)
        stack.machine.run_until_quiet()
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == (status, reason)
    assert stack.notices(job_id) == ["ended"]
    assert "due" not in head
    assert [e["sk"] for e in stack.journal(job_id) if "#job#" in e["sk"]] == ["EVENT#job#0001"]


def test_advance_that_was_not_journaled_before_its_job_was_cancelled_is_journaled(
    stack: Stack,
) -> None:
    job_id = stack.ask("cancelled-between")
    stack.run_until(lambda: queue_of(stack, "classify") in stack.machine.backlog())
    with stack.dying_at(
        lambda call: (
            call.parameters.get("Item", {}).get("sk", {}).get("S") == "EVENT#classify#0001"
        ),
        "before",
    ):
        stack.machine.step()
    with stack.machine.inside("bury"):
        recovery.cancel(job_id, "not wanted")
    stack.machine.run_until_quiet()
    journal = {e["sk"] for e in stack.journal(job_id)}
    assert {"EVENT#classify#0001", "EVENT#job#0001"} <= journal


# --- bury --------------------------------------------------------------------------------------------------


def break_function(stack: Stack, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As after a bad deploy: the function does not even load."""

    def broken(event: object, context: object) -> None:
        raise ImportError("no module named nonsense")

    key = stack.machine.function(name).logical_id
    monkeypatch.setitem(stack.machine.functions._handlers, key, broken)


def test_a_job_whose_function_never_started_fails_and_is_redriven_to_its_end(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        break_function(stack, broken, "draft")
        job_id = stack.run("never")
    assert_failed(stack, job_id, "never_started")
    [record] = stack.dead(job_id)
    assert (record["function"], record["reason"]) == ("draft", "never_started")
    assert record["job_id"] == job_id
    with stack.machine.inside("bury"):
        assert recovery.redrive(record["id"]) == "reopened"
    stack.machine.run_until_quiet()
    ending = stack.ending(job_id)
    assert (ending.stage, ending.status, ending.reason) == ("acted", "done", None)
    journal = [e["sk"] for e in stack.journal(job_id) if "#job#" in e["sk"]]
    assert journal == ["EVENT#job#0001", "EVENT#job#0002"]
    assert stack.notices(job_id) == ["ended", "ended"]
    assert stack.dead(job_id) == []


def test_a_bug_uses_up_the_tries_and_is_buried_with_its_traceback(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr("stafette.agent.model.send", bug)
        job_id = stack.run("bug")
    assert_failed(stack, job_id, "attempts_exhausted")
    [record] = stack.dead(job_id)
    assert record["reason"] == "attempts_exhausted"
    assert "ZeroDivisionError: a fault of ours" in record["detail"]
    assert 'File "' in record["detail"]
    assert json.loads(json.loads(record["value"]))["job_id"] == job_id
    assert stack.head(job_id)["failures"] == MOST_FAILURES + 1
    with stack.machine.inside("bury"):
        assert recovery.redrive(record["id"]) == "reopened"
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)


def test_a_message_that_bounced_is_buried_and_its_job_goes_on(stack: Stack) -> None:
    job_id = stack.ask("bounced")
    stack.run_until(lambda: queue_of(stack, "classify") in stack.machine.backlog())
    [body] = stack.take_away("classify")
    # Two workers died at it; then it was received too often without ever being claimed.
    stack.edit((f"JOB#{job_id}", "JOB"), failures=2, attempt=3)
    stack.send("bury", body)
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)
    [record] = stack.dead(job_id)
    assert record["reason"] == "bounced"


def test_burying_twice_ends_once(stack: Stack) -> None:
    job_id = stack.ask("buried-twice")
    stack.run_until(lambda: queue_of(stack, "classify") in stack.machine.backlog())
    [body] = stack.take_away("classify")
    stack.send("bury", body)
    stack.send("bury", body)
    stack.machine.run_until_quiet()
    assert_failed(stack, job_id, "never_started")
    assert {record["reason"] for record in stack.dead(job_id)} == {"never_started"}


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("phase", ["before", "after"])
def test_bury_may_die_at_any_call(stack: Stack, number: int, phase: str) -> None:
    job_id = stack.ask(f"bury-dies-{number}-{phase}")
    stack.run_until(lambda: queue_of(stack, "classify") in stack.machine.backlog())
    [body] = stack.take_away("classify")
    stack.send("bury", body)
    with stack.dying("bury", number, phase):  # type: ignore[arg-type]
        stack.machine.run_until_quiet()
    # A job that bury had claimed before it died was begun by somebody: it gets another try.
    head = stack.head(job_id)
    assert head["status"] in ("done", "failed")
    assert stack.notices(job_id) == ["ended"]
    assert stack.dead(job_id)
    assert stack.machine.backlog() == {}


# --- a person, and waiting -----------------------------------------------------------------------------------


def test_the_next_claim_of_a_cancelled_job_does_nothing(stack: Stack) -> None:
    job_id = stack.ask("cancelled")
    stack.run_until(lambda: queue_of(stack, "act") in stack.machine.backlog())
    with stack.machine.inside("bury"):
        for _ in range(2):
            head = recovery.cancel(job_id, "not wanted any more")
            assert head is not None
            assert head.status == "cancelled"
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["stage"] == "drafted"
    assert (stack.outbox(job_id), stack.notices(job_id)) == ({}, ["ended"])
    assert stack.dead(job_id) == []
    assert stack.machine.backlog() == {}
    with stack.machine.inside("bury"):
        assert recovery.reopen(job_id) is None


def test_a_throttled_wait_uses_up_no_failure(stack: Stack) -> None:
    waits = MOST_FAILURES + 3
    began = stack.machine.clock.now()
    stack.model.script(*[error(429, "rate_limit_error", {"retry-after": "30"})] * waits)
    job_id = stack.ask("throttled", 0)
    stack.run_until(lambda: stack.head(job_id).get("wake") == 1 if exists(stack, job_id) else False)
    assert stack.head(job_id)["failures"] == 0
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)
    assert stack.model.unused == 0
    assert stack.machine.clock.now() - began >= 30 * waits


def exists(stack: Stack, job_id: str) -> bool:
    return stack.item(f"JOB#{job_id}", "JOB") is not None


def test_failures_that_count_end_a_job_with_the_last_reason(stack: Stack) -> None:
    stack.model.script(*[error(500, "api_error")] * MOST_FAILURES)
    job_id = stack.run("counted", 0)
    assert_failed(stack, job_id, "attempts_exhausted")
    assert "model_error" in stack.head(job_id)["detail"]
    assert stack.model.unused == 0
    with stack.machine.inside("bury"):
        assert recovery.reopen(job_id) is not None
        stack.machine.clock.advance_to(stack.machine.clock.now() + 1)
        assert recovery.reopen(job_id) is None
    stack.machine.run_until_quiet()
    assert_done(stack, job_id)


def test_a_wait_that_is_long_is_bridged_by_delayed_copies(stack: Stack) -> None:
    began = stack.machine.clock.now()
    stack.model.script(error(429, "rate_limit_error", {"retry-after": "4000"}))
    job_id = stack.run("long", 0)
    assert_done(stack, job_id)
    assert 4000 <= stack.machine.clock.now() - began < 4100
