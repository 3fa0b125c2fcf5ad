"""`stafette prove` in short: a sample of its schedules, drawn by a seed.

* Every run with faults ends as the undisturbed one, and breaks nothing that must hold of any run.
* What is tried is everything: a place for a fault at every call and every message.
"""

import random
from collections.abc import Iterator

import pytest

from cli import read as events
from local.demo import EVENTS
from local.prove import plan
from local.prove.checks import Break
from local.prove.course import Result, Scenario
from local.prove.faults import AT_BATCHES, AT_CALLS, WITH_MESSAGES, Fault, read, write
from local.prove.prover import proving
from local.prove.runner import Bench, tasks

SEED = 4
FUNCTIONS = ("intake", "route", "classify", "enrich", "enrich_record", "draft", "act", "notify")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    [request] = events.requests(str(EVENTS / "urgent.json"), None, None)
    body = request.model_dump(mode="json", exclude_none=True)
    with proving(Scenario("urgent", (body,)), SEED) as prover:
        yield Bench(prover)


def test_there_is_a_place_for_a_fault_at_every_call_and_every_message(bench: Bench) -> None:
    course = bench.expected.course
    assert set(course.calls) == set(course.taken) == set(FUNCTIONS)
    planned = tasks(course, SEED, plan.Sizes())
    assert planned == tasks(course, SEED, plan.Sizes())
    for kind in AT_CALLS:
        assert sum(task.kind == kind for task in planned) == course.calls.total() > 75
    for kind in WITH_MESSAGES:
        assert sum(task.kind == kind for task in planned) == course.taken.total() > 10
    assert sum(task.kind in AT_BATCHES for task in planned) == len(course.batches) > 0
    every = plan.pairs(course, random.Random(SEED), None)
    assert len(set(every)) == len(every) > 4 * course.calls.total() ** 2 / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [*AT_CALLS, *AT_BATCHES, *(k for k in WITH_MESSAGES if k != "meet"), "die-twice"]
)
def test_a_sample_of_faults_loses_and_doubles_nothing(bench: Bench, kind: str) -> None:
    chance, course = random.Random(f"{SEED}:{kind}"), bench.expected.course
    known = plan.pairs(course, chance, 4) if kind == "die-twice" else plan.singles(course, kind)
    for schedule in chance.sample(known, min(2, len(known))):
        verdict = bench.verdict(schedule)
        assert verdict.breaks == (), (verdict.schedule, *verdict.trace)
        assert verdict.played or kind == "die-twice", verdict.schedule


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [
        "throttle:act:4",  # the record of the effect, which took place
        "lose-all:act:2",  # its reservation: the next try waits, and its waits are no failures
        "lose-all:act:3",  # the effect itself
        "throttle:notify:3",
        "throttle:classify:5",  # the result of an answer that was paid for
        "lose-all:classify:6",  # the advance
    ],
)
def test_a_table_that_is_busy_or_silent_costs_no_job_no_effect_and_no_answer(
    bench: Bench, schedule: str
) -> None:
    verdict = bench.verdict(read(schedule))
    assert verdict.played
    assert verdict.breaks == (), verdict.trace
    assert bench.prover.course.served == bench.expected.course.served
    assert bench.prover.course.acted == bench.expected.course.acted


@pytest.mark.slow
def test_all_interleavings_of_two_deliveries_of_a_notice_tell_it_once(bench: Bench) -> None:
    message = Fault("meet", "notify", 2)
    chance = random.Random(SEED)
    verdicts = bench.meetings(message, chance, 100)
    assert len({v.schedule for v in verdicts}) == len(verdicts) > 5
    assert [(v.schedule, v.breaks) for v in verdicts if v.breaks] == []


def test_a_schedule_is_read_as_it_is_written() -> None:
    text = "die-after:act:7+meet:enrich_record:2:aabB+stall:draft:1"
    assert write(read(text)) == text
    for wrong in ("", "die:act:1", "die-after:act", "die-after:act:0", "twice:act:1:ab", "a+b"):
        with pytest.raises(ValueError, match=r"is no fault|only meet"):
            read(wrong)


def test_a_run_that_breaks_something_is_cut_down_to_the_fault_that_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_breaks(expected: Result, found: Result) -> list[Break]:
        return [Break("lost", "it")] if "die-after:act:3" in map(str, found.course.played) else []

    monkeypatch.setattr("local.prove.runner.breaks", one_breaks)
    found = bench.verdict(read("twice:act:1+die-after:act:3+late:draft:1"))
    assert found.breaks
    assert bench.shrunk(found).schedule == "die-after:act:3"
