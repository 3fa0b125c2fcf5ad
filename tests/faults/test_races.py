"""Those who end or push a job, at once: with each other, with themselves, with a healthy worker.

Two of them run in turns from call to call: one goes so far, the other to its end, then the first to its; and some drawn
orders. However they meet, the job ends once, with a reason, and acts at most once.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from local.calls import Call, Phase
from local.prove.workers import Worker, interleave
from stafette.core.job import MOST_FAILURES
from stafette.relay import recovery
from tests.support import Stack, running_stack

SEED = 7
# Of drawn orders of two, besides those where one runs through within the other.
DRAWN = 2
LONGEST = 40
RECORDS = 2
ENDED = ("done", "failed", "cancelled")

Act = Callable[[Stack, str], object]


# --- who meets whom --------------------------------------------------------------------------------------


def work(stack: Stack, job_id: str) -> None:
    """A healthy worker takes the message that waits."""
    deliver(stack, "act")


def work_a_part(stack: Stack, job_id: str) -> None:
    deliver(stack, "enrich_record")


def bury(stack: Stack, job_id: str) -> None:
    """A copy of the message is in the dead-letter queue."""
    deliver(stack, "bury")


def sweep(stack: Stack, job_id: str) -> None:
    stack.machine.invoke("sweep", {})


def cancel(stack: Stack, job_id: str) -> None:
    with stack.machine.inside("bury"):
        recovery.cancel(job_id, "not wanted")


def reopen(stack: Stack, job_id: str) -> None:
    with stack.machine.inside("bury"):
        recovery.reopen(job_id)


def deliver(stack: Stack, function: str) -> None:
    """One batch to a function. Nothing to deliver, because the other took it, is fine."""
    [mapping] = [m for m in stack.machine.mappings if m.function.name == function]
    if batch := mapping.take():
        stack.machine.deliver(mapping, batch)


# --- where they meet ---------------------------------------------------------------------------------------


def at(stack: Stack, name: str, queue: str) -> str:
    """A ticket with its message on a queue, and two copies of that among the dead."""
    job_id = stack.ask(name, RECORDS)
    stack.run_until(lambda: stack.machine.queue(queue).logical_id in stack.machine.backlog())
    waiting = stack.machine.backlog()[stack.machine.queue(queue).logical_id]
    for _ in range(2):
        stack.send("bury", waiting[0].body)
    return job_id


def waits(stack: Stack, name: str) -> str:
    return at(stack, name, "act")


def used_up(stack: Stack, name: str) -> str:
    job_id = waits(stack, name)
    stack.edit((f"JOB#{job_id}", "JOB"), failures=MOST_FAILURES, attempt=MOST_FAILURES)
    return job_id


def overdue(stack: Stack, name: str) -> str:
    job_id = waits(stack, name)
    now = stack.machine.clock.now()
    stack.edit((f"JOB#{job_id}", "JOB"), deadline=now, due=now)
    return job_id


def lost(stack: Stack, name: str) -> str:
    """Its message is lost, and sweep is to look."""
    job_id = waits(stack, name)
    stack.take_away("act")
    stack.edit((f"JOB#{job_id}", "JOB"), due=stack.machine.clock.now())
    return job_id


def lost_and_overdue(stack: Stack, name: str) -> str:
    job_id = lost(stack, name)
    stack.take_away("bury")
    stack.edit((f"JOB#{job_id}", "JOB"), deadline=stack.machine.clock.now())
    return job_id


def a_part_waits(stack: Stack, name: str) -> str:
    """The message of one part of two waits, the other was not handed out yet."""
    job_id = stack.ask(name, RECORDS)
    stack.run_until(
        lambda: any(
            '"kind":"part"' in message.body
            for message in stack.machine.backlog().get(
                stack.machine.queue("enrich_record").logical_id, ()
            )
        )
    )
    [first, *_] = stack.machine.backlog()[stack.machine.queue("enrich_record").logical_id]
    for _ in range(2):
        stack.send("bury", first.body)
    return job_id


def a_range_waits(stack: Stack, name: str) -> str:
    return at(stack, name, "enrich_record")


def failed(stack: Stack, name: str) -> str:
    job_id = overdue(stack, name)
    sweep(stack, job_id)
    return job_id


PAIRS: tuple[tuple[Callable[[Stack, str], str], Act, Act], ...] = (
    (waits, bury, bury),
    (waits, bury, work),
    (waits, cancel, work),
    (used_up, bury, bury),
    (used_up, bury, work),
    (overdue, sweep, sweep),
    (lost_and_overdue, sweep, sweep),
    (overdue, sweep, work),
    (overdue, sweep, bury),
    (overdue, sweep, cancel),
    (lost, sweep, sweep),
    (lost, sweep, bury),
    (a_part_waits, bury, bury),
    (a_part_waits, bury, work_a_part),
    (a_range_waits, bury, bury),
    (a_range_waits, bury, work_a_part),
    (failed, reopen, reopen),
    (failed, reopen, bury),
    (failed, reopen, cancel),
)


# --- what must hold ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.mark.parametrize(
    ("where", "one", "other"),
    PAIRS,
    ids=["-".join(each.__name__ for each in pair) for pair in PAIRS],
)
def test_whoever_meets_a_job_ends_once_with_a_reason_and_acts_at_most_once(
    stack: Stack,
    where: Callable[[Stack, str], str],
    one: Act,
    other: Act,
) -> None:
    name = f"{where.__name__}-{one.__name__}-{other.__name__}"
    job_id = where(stack, name)
    stored, now = stack.machine.backend.save(), stack.machine.clock.now()
    for order in orders():
        stack.machine.backend.restore(stored)
        stack.machine.clock.go_back_to(now)  # type: ignore[union-attr]
        published, calls = len(stack.machine.published), len(stack.machine.calls)
        with statuses(stack, job_id) as seen:
            made = meet(stack, job_id, one, other, order)
            rest(stack, job_id)
        wrong = [*faults(stack, job_id, published, calls), *changed(seen)]
        assert not wrong, f"in the order {made}: {wrong}"
        if order.endswith("B") and made.count("a") < len(order) - 1:
            break  # the first has no more calls, so that longer orders are the same


def orders() -> Iterator[str]:
    """Drawn ones, then one call more of the first each time before the other runs to its end."""
    draw = random.Random(SEED)
    for _ in range(DRAWN):
        yield "".join(draw.choices("ab", k=LONGEST))
    for n in range(LONGEST):
        yield "a" * n + "B"


def meet(stack: Stack, job_id: str, one: Act, other: Act, order: str) -> str:
    workers: dict[str, Worker] = {}

    def stop(phase: Phase, call: Call) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Worker):
            workers[call.invocation.request_id] = thread
        worker = workers.get(call.invocation.request_id)
        if phase == "before" and worker is not None and worker.stops:
            worker.stop_here()

    remove = stack.machine.on_call(stop)
    try:
        return interleave(
            Worker(lambda: one(stack, job_id)), Worker(lambda: other(stack, job_id)), order
        )
    finally:
        remove()


@contextmanager
def statuses(stack: Stack, job_id: str) -> Iterator[list[tuple[int, str]]]:
    """Generation and status of a job after each write."""
    seen: list[tuple[int, str]] = []

    def look(phase: Phase, call: Call) -> None:
        if phase == "after" and call.operation == "UpdateItem":
            head = stack.head(job_id)
            seen.append((int(head.get("generation", 0)), head["status"]))

    remove = stack.machine.on_call(look)
    try:
        yield seen
    finally:
        remove()


def changed(seen: list[tuple[int, str]]) -> list[str]:
    """Ends that were not the last word of their generation."""
    return [
        f"{one} became {other}"
        for one, other in pairwise(seen)
        if one != other and one[0] == other[0] and one[1] in ENDED
    ]


def rest(stack: Stack, job_id: str) -> None:
    """Runs on, with sweep, until nothing is left to be done."""
    stack.machine.run_until_quiet()
    for _ in range(3):
        if "due" not in (head := stack.head(job_id)):
            return
        stack.machine.clock.advance_to(float(head["due"]))
        stack.machine.invoke("sweep", {})
        stack.machine.run_until_quiet()


def faults(stack: Stack, job_id: str, published: int, calls: int) -> list[str]:
    head = stack.head(job_id)
    told = [
        json.loads(each["message"])["notice_id"] for each in stack.machine.published[published:]
    ]
    ended = [e["sk"] for e in stack.journal(job_id) if "#job#" in e["sk"]]
    acted = stack.took_effect(job_id, calls)
    wrong = []
    if head["status"] not in ENDED:
        wrong.append(f"it is {head['status']} at {head['stage']}")
    if head["status"] != "done" and not head.get("reason"):
        wrong.append("it ended without a reason")
    if head["status"] == "done" and not acted:
        wrong.append("it is done and did nothing")
    if ended != [f"EVENT#job#{n + 1:04d}" for n in range(len(ended))]:
        wrong.append(f"the journal has {ended}")
    if len(ended) != 2 * head.get("generation", 0) + (head["status"] != "done"):
        wrong.append(f"generation {head.get('generation')} has {ended}")
    if set(Counter(told).values()) - {1} or set(acted.values()) - {1}:
        wrong.append(f"twice: {told} {acted}")
    if not told:
        wrong.append("nobody was told")
    shard = stack.item(f"JOB#{job_id}#enrich#000", "JOIN")
    if shard and not shard["completed"] == len(shard["members"]) <= RECORDS:
        wrong.append(f"counted: {shard}")
    if stack.machine.backlog():
        wrong.append(f"left: {list(stack.machine.backlog())}")
    if "due" in head:
        wrong.append("it is still looked at")
    return wrong
