"""Runs a plan over several processes, each with a machine of its own, and sums up what came of it."""

import logging
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

from local.prove import plan
from local.prove.checks import Break, breaks
from local.prove.course import Course, Scenario
from local.prove.faults import AT_BATCHES, AT_CALLS, WITH_MESSAGES, Fault, Schedule, read, write
from local.prove.prover import Prover, proving


@dataclass(frozen=True)
class Verdict:
    """What one run with faults came to. `played` is false when the run never came to where its faults were; `seconds`
    are of processor time."""

    schedule: str
    played: bool
    breaks: tuple[Break, ...]
    trace: tuple[str, ...]
    seconds: float


@dataclass
class Row:
    """The runs of one kind of fault.

    Attributes:
        points: schedules that were tried and came to pass.
        lost, doubled, wrong: runs that lost work, did something twice, or ended otherwise.
        seconds: processor time of all its runs, which does not depend on what else the machine does.
    """

    kind: str
    points: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    seconds: float = 0.0
    drawn: bool = False
    failed: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Counts a run."""
        self.seconds += verdict.seconds
        self.points += verdict.played
        kinds = {each.kind for each in verdict.breaks}
        self.lost += "lost" in kinds
        self.doubled += "doubled" in kinds
        self.wrong += bool(kinds & {"wrong", "early"})
        if kinds:
            self.failed.append(verdict)


@dataclass(frozen=True)
class Report:
    """What all runs came to."""

    scenario: str
    seed: int
    calls: int
    messages: int
    rows: tuple[Row, ...]
    processes: int
    seconds: float

    @property
    def failed(self) -> list[Verdict]:
        """The runs in which something was lost, doubled or wrong; the shortest trace first."""
        found = [verdict for row in self.rows for verdict in row.failed]
        return sorted(found, key=lambda v: (v.schedule.count("+"), len(v.trace)))


class NotDoneError(Exception):
    """The scenario does not get done even undisturbed, so there is nothing to compare with."""


class Bench:
    """A prover that is open, and the undisturbed run that its runs are compared with."""

    def __init__(self, prover: Prover) -> None:
        self.prover = prover
        self.expected = prover.undisturbed()
        ended = {job: ending and ending.status for job, ending in self.expected.endings.items()}
        if set(ended.values()) != {"done"} or self.expected.left:
            why = [
                *self.expected.left,
                *self.expected.dead,
                *filter(None, [self.expected.course.stuck]),
            ]
            raise NotDoneError(f"undisturbed, its jobs end so: {ended}; {'; '.join(why)}")

    def verdict(self, schedule: Schedule) -> Verdict:
        """Runs a schedule and compares."""
        began = time.process_time()
        found = self.prover.play(schedule)
        wrong = tuple(breaks(self.expected, found))
        return Verdict(
            schedule=write(schedule),
            played=len(found.course.played) == len(schedule),
            breaks=wrong,
            trace=tuple(found.course.trace) if wrong else (),
            seconds=time.process_time() - began,
        )

    def meetings(self, message: Fault, chance: random.Random, most: int) -> list[Verdict]:
        """Runs the interleavings of two deliveries of a message."""
        verdicts = []
        meetings = plan.Meetings(message, chance, most)
        for schedule in meetings:
            verdicts.append(self.verdict(schedule))
            meetings.run += self.prover.course.orders or [""]
        return verdicts

    def shrunk(self, verdict: Verdict) -> Verdict:
        """The same break with as few faults as show one."""
        faults = read(verdict.schedule)
        for fault in faults if len(faults) > 1 else ():
            fewer = tuple(each for each in faults if each is not fault)
            found = self.verdict(fewer) if fewer else verdict
            if found.breaks and fewer:
                return self.shrunk(found)
        return verdict


# --- one process ---------------------------------------------------------------------------------------------------

_bench: Bench | Exception | None = None
_open = ExitStack()


def _begin(scenario: Scenario, seed: int) -> None:
    """Opens a bench for the life of this process."""
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet()
    prover = _open.enter_context(proving(scenario, seed))
    try:
        _bench = Bench(prover)
    except Exception as error:  # noqa: BLE001 - told to whoever asks: a process that fails to begin could not say why
        _bench = error


def quiet() -> None:
    """Nothing of hundreds of runs belongs on a terminal."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def _run(task: "Task", seed: int) -> list[Verdict]:
    assert isinstance(_bench, Bench)
    if task.message is not None:
        chance = random.Random(f"{seed}:{task.message}")
        found = _bench.meetings(task.message, chance, task.most)
    else:
        found = [_bench.verdict(task.schedule)]
    return [_bench.shrunk(each) if each.breaks else each for each in found]


def _undisturbed() -> Course:
    if isinstance(_bench, Exception):
        raise _bench
    assert _bench is not None
    return _bench.expected.course


@dataclass(frozen=True)
class Task:
    """What is handed to a process: a schedule, or a message whose interleavings are tried."""

    kind: str
    schedule: Schedule = ()
    message: Fault | None = None
    most: int = 0


# --- all of them ---------------------------------------------------------------------------------------------------

Progress = Callable[[int, int], None]


def tasks(course: Course, seed: int, sizes: plan.Sizes) -> list[Task]:
    """The plan for a scenario, as tasks."""
    chance = random.Random(seed)
    found: list[Task] = []
    for kind in (*AT_CALLS, *AT_BATCHES, *(k for k in WITH_MESSAGES if k != "meet")):
        found += [Task(kind, schedule) for schedule in plan.singles(course, kind)]
    if sizes.meetings:
        messages = [fault for (fault,) in plan.singles(course, "meet")]
        found += [Task("meet", message=fault, most=sizes.meetings) for fault in messages]
    found += [Task("die-twice", pair) for pair in plan.pairs(course, chance, sizes.twice)]
    found += [Task("random", each) for each in plan.drawn(course, chance, sizes.random)]
    return found


def prove(
    scenario: Scenario,
    *,
    seed: int,
    sizes: plan.Sizes | None = None,
    only: Schedule | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Proves a scenario.

    Args:
        only: this schedule alone.
        processes: how many; None is one for each processor.
        progress: told how many tasks of how many are done.

    Raises:
        NotDoneError: there is nothing to compare with.
    """
    began = time.monotonic()
    many = 1 if only is not None else processes or os.cpu_count() or 1
    with _pool(scenario, seed, many) as pool:
        course = pool.submit(_undisturbed).result()
        todo = tasks(course, seed, sizes or plan.Sizes()) if only is None else [Task("only", only)]
        rows = {task.kind: Row(task.kind) for task in todo}
        # The long ones first, so that no process is left alone with one at the end.
        todo.sort(key=lambda task: task.message is None)
        waiting: dict[Future[list[Verdict]], Task] = {pool.submit(_run, t, seed): t for t in todo}
        done = 0
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                task = waiting.pop(future)
                for verdict in future.result():
                    rows[task.kind].add(verdict)
                done += 1
                if progress:
                    progress(done, len(todo))
    return Report(
        scenario=scenario.name,
        seed=seed,
        calls=course.calls.total(),
        messages=course.taken.total(),
        rows=tuple(rows.values()),
        processes=many,
        seconds=time.monotonic() - began,
    )


@contextmanager
def _pool(scenario: Scenario, seed: int, processes: int) -> Iterator[ProcessPoolExecutor]:
    # A fresh interpreter each: what runs in threads here must not be copied half-way.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (scenario, seed))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
