"""`stafette prove` in short: a sample of its schedules, drawn by a seed.

* Every run with faults ends as the undisturbed one, and breaks nothing that must hold of any run.
* What is tried is everything: a place for a fault at every call and every message.
* The sample goes through every guard of a model call: retry, fallback, a hit in the cache, limit, both budgets.
"""

import random
import re
from collections.abc import Iterator

import pytest

from cli import read as events
from cli.prove import SAMPLE
from local.demo import EVENTS
from local.prove import plan
from local.prove.checks import Break
from local.prove.course import Result, Scenario
from local.prove.faults import AT_BATCHES, AT_CALLS, WITH_MESSAGES, Fault, read, write
from local.prove.prover import proving
from local.prove.runner import Bench, tasks
from stafette.core.budget import Amount

SEED = 4
FUNCTIONS = ("intake", "route", "classify", "enrich", "enrich_record", "draft", "act", "notify")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    [request] = events.requests(str(EVENTS / f"{SAMPLE}.json"), None, None)
    body = request.model_dump(mode="json", exclude_none=True)
    with proving(Scenario(SAMPLE, (body,)), SEED) as prover:
        yield Bench(prover)


def made(bench: Bench, function: str) -> list[str]:
    """The calls of a function when nothing disturbs it, in words of the trace."""
    lines = (re.match(rf"  {function}:\d+ (.*)", line) for line in bench.expected.course.trace)
    return [line[1] for line in lines if line]


def test_the_sample_goes_through_every_guard_of_a_model_call(bench: Bench) -> None:
    classify, reads = made(bench, "classify"), made(bench, "enrich_record")
    assert [call for call in classify if call.startswith("model")] == [
        "model claude-haiku-5-5",
        "model claude-haiku-5-5",
        "model claude-sonnet-5-5",
    ]
    assert reads.count("model claude-haiku-5-5") == 2
    assert reads.count("dynamodb GetItem CACHE") == 3
    assert reads.count("dynamodb PutItem CACHE") == 2
    bill = bench.expected.bill
    assert (bench.expected.course.served, bill.recorded, bill.settled, bill.hits) == (6, 6, 6, 1)
    assert [place.split("#")[0] for place in bill.accounts] == ["JOB", "TENANT"]
    assert all(each.booked == each.cost != Amount() for each in bill.accounts.values())
    assert (bill.slots, bill.torn) == ((), ())
    assert {"dynamodb GetItem LIMIT", "dynamodb UpdateItem LIMIT"} <= {*classify, *reads}


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
    ("kind", "function", "call"),
    [
        ("throttle", "act", "UpdateItem EFFECT#send_reply"),  # the effect took place
        ("lose-all", "act", "PutItem EFFECT#send_reply"),  # the next try waits: that is no failure
        ("lose-all", "act", "PutObject outbox"),
        ("throttle", "notify", "UpdateItem EFFECT#notify_classified"),
        ("throttle", "classify", "PutItem RESULT#"),  # of answers that were paid for
        ("lose-all", "classify", "PutItem RESULT#"),
        ("throttle", "classify", "PutItem CALL#"),
        ("throttle", "classify", "UpdateItem BUDGET"),
        ("lose-all", "draft", "UpdateItem LIMIT"),
    ],
)
def test_a_table_that_is_busy_or_silent_costs_no_job_no_effect_and_no_answer(
    bench: Bench, kind: str, function: str, call: str
) -> None:
    number = next(n for n, each in enumerate(made(bench, function), 1) if call in each)
    verdict = bench.verdict((Fault(kind, function, number),))
    assert verdict.played
    assert verdict.breaks == (), verdict.trace
    assert bench.prover.course.served == bench.expected.course.served
    assert bench.prover.course.acted == bench.expected.course.acted


@pytest.mark.slow
def test_a_hit_that_is_lost_with_its_keeper_is_a_call_more_and_no_break(bench: Bench) -> None:
    calls = made(bench, "enrich_record")
    second = [n for n, call in enumerate(calls, 1) if call == "dynamodb PutItem CACHE"][1]
    verdict = bench.verdict((Fault("throttle", "enrich_record", second),))
    assert verdict.breaks == (), verdict.trace
    assert bench.prover.course.served == bench.expected.course.served + 1


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
