"""What must be equal between a run with faults and the undisturbed one, and what must hold of any run.

Attempts, times and costs may differ. A model call may be made again for each worker that died or stalled, and for each
answer of the model that was lost: what was told was lost with it. It may not for an answer that is on record. A notice
may be published again, under its id (docs/decisions/0001). Of two questions that are the same, which one is answered
from the cache depends on their order, and whether one is: calls and hits together are as many as questions. A record of
a model call that the table refused to settle, or did not acknowledge before the call was made, stays `begun`, and its
guards are left to the clock. A budget may then have booked more than was used; it never has booked less.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from local.prove.course import Result
from local.records import Ending
from stafette.core.budget import UNITS

# `wrong` is what is neither lost nor doubled: another result, a job that still waits, a run that never came to rest.
Kind = Literal["lost", "doubled", "early", "wrong"]


@dataclass(frozen=True)
class Break:
    """Something that a fault changed and must not have."""

    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def breaks(expected: Result, found: Result) -> list[Break]:
    """Everything that is not as it must be."""
    return [*_of_run(expected, found), *_of_jobs(expected, found)]


def _of_run(expected: Result, found: Result) -> Iterator[Break]:
    course = found.course
    struck = course.died + course.stalled
    if course.stuck:
        yield Break("wrong", course.stuck)
    for message in found.left:
        yield Break("lost", f"a message is left on {message}")
    for record in set(found.dead) - set(expected.dead):
        yield Break("lost", f"a message of {record} was given up")
    for join in course.early:
        yield Break("early", f"{join} before its parts had ended")
    for what, times in course.acted.items():
        # A worker that stalls for longer than anybody may work can still act: the outside knows its key.
        if times > expected.course.acted[what] + course.stalled.total():
            yield Break("doubled", f"{what} was asked for {times} times")
    for notice, times in found.told.items():
        if times > 1 + struck["notify"] + course.unheard["sns"]:
            yield Break("doubled", f"{notice} was published {times} times")
    yield from _of_bill(expected, found)


def _of_bill(expected: Result, found: Result) -> Iterator[Break]:
    """What the model was asked, by its own count, is on record, and every budget has booked it."""
    course, paid, struck = found.course, found.bill, found.course.died + found.course.stalled
    asked = course.served + paid.hits - expected.course.served - expected.bill.hits
    unheard = struck.total() + course.unheard["model"]
    if asked > unheard:
        yield Break("doubled", f"{asked} model calls more, with {unheard} whose answer was lost")
    known = paid.answered + paid.hits - expected.bill.answered - expected.bill.hits
    if known > course.stalled.total():
        yield Break("doubled", f"{known} of the answers were paid for though they were on record")
    if paid.recorded < course.served:
        yield Break("lost", f"{course.served} model calls were paid for, {paid.recorded} recorded")
    unwritten = struck.total() + course.refused["dynamodb"] + course.unheard["dynamodb"]
    begun = paid.recorded - paid.settled
    if begun > unwritten:
        yield Break("lost", f"{begun} model calls never said how they ended")
    unsent = unwritten + course.unheard["model"] + course.refused["model"]
    if paid.recorded - course.served > unsent:
        yield Break("wrong", f"{paid.recorded} model calls recorded, {course.served} were paid for")
    for place in paid.torn:
        yield Break("wrong", f"the record {place} is not whole")
    for place in expected.bill.accounts.keys() - paid.accounts.keys():
        yield Break("lost", f"nothing is booked in {place}")
    for place, account in paid.accounts.items():
        for unit in UNITS:
            booked, cost = getattr(account.booked, unit), getattr(account.cost, unit)
            if booked < cost:
                yield Break("lost", f"{place} has booked {booked} {unit}, its calls used {cost}")
            elif booked > cost and not unsent:
                yield Break("wrong", f"{place} has booked {booked} {unit}, its calls used {cost}")
    if len(paid.slots) > unsent:
        yield Break("wrong", f"nobody has left {', '.join(paid.slots)}")


def _of_jobs(expected: Result, found: Result) -> Iterator[Break]:
    for job, wanted in expected.endings.items():
        ending = found.endings[job]
        if wanted is None or ending is None:
            if ending is not wanted:
                yield Break("lost" if ending is None else "wrong", f"job {job}: {ending or 'gone'}")
            continue
        for field in fields(Ending):
            yield from _differences(
                field.name, getattr(wanted, field.name), getattr(ending, field.name)
            )


def _differences(name: str, wanted: object, found: object) -> Iterator[Break]:
    if wanted == found:
        return
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in wanted.keys() - found.keys():
            yield Break("lost", f"{name}: no {key}")
        for key in found.keys() - wanted.keys():
            yield Break("doubled", f"{name}: {key} is there as well")
        for key in wanted.keys() & found.keys():
            if wanted[key] != found[key]:
                kind: Kind = "lost" if name in ("parts", "joins", "effects") else "wrong"
                yield Break(kind, f"{name}: {key} is {found[key]!r:.200}, not {wanted[key]!r:.200}")
    else:
        kind = "lost" if name in ("stage", "status", "notices") else "wrong"
        yield Break(kind, f"{name} is {found!r:.200}, not {wanted!r:.200}")
