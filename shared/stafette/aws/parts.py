"""The writes of a fan-out: claiming and ending parts, and the join that counts each of them once."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from boto3.dynamodb.conditions import Attr

from stafette.aws import keys, table
from stafette.aws.store import (
    LostLeaseError,
    expires,
    loaded_value,
    put_off_lease,
    stored_value,
    take_lease,
)
from stafette.aws.table import ConditionFailedError, Item, Path
from stafette.core.job import Part
from stafette.core.joins import Outcome, members, range_of, ranges
from stafette.core.messages import PartWork, RangeWork
from stafette.core.run import Run

_OPEN = Attr("value").not_exists() & Attr("ref").not_exists() & Attr("reason").not_exists()
_FREE = _OPEN & Attr("form").not_exists()  # not for a part that waits for a person


@dataclass(frozen=True, slots=True)
class Count:
    """A counter of a join: how many of what it waits for have ended, and how many of these failed."""

    completed: int = 0
    failed: int = 0


def claim(work: PartWork, owner: str, until: float, now: float) -> Part:
    """Claims a part and reads it, in one write. Returns it as it stands: `decide_part` tells whose it is."""
    key = keys.part(work.job_id, work.split, work.index)
    try:
        known: dict[Path, Any] = {"index": work.index, "expires": expires()}
        item = take_lease(key, work.wake, owner, until, now, _FREE, known)
    except ConditionFailedError as lost:
        item = lost.old or {"index": work.index}
    return _part(item)


def put_off(work: PartWork, until: float, now: float, why: str) -> Part | None:
    """Lets a part wait that nobody has claimed. Returns it as it then stands; None if a claim would fail as well."""
    key = keys.part(work.job_id, work.split, work.index)
    known: dict[Path, Any] = {"index": work.index, "expires": expires()}
    try:
        item = put_off_lease(key, work.wake, until, now, why, _FREE, known)
    except ConditionFailedError as lost:
        item = lost.old or {}
        if (item.get("wake"), float(item.get("not_before", 0))) != (work.wake + 1, until):
            return None
    return _part(item)


def finish(work: PartWork, value: Any, began: float, ended: float) -> bool:
    """Stores the result of a part. The first result stands, whoever's it is: True if that is a value."""
    return _end(work, stored_value(value, work.job_id) | {"began": began, "ended": ended})


def fail(work: PartWork, reason: str, detail: str, now: float, began: float | None = None) -> bool:
    """Stores that a part failed, unless it has ended. True if what stands is a value after all."""
    known = {} if began is None else {"began": began}
    return _end(work, {**known, "reason": reason[:60], "detail": detail[:1000], "ended": now})


def _end(work: PartWork, result: dict[str, Any]) -> bool:
    sets: dict[Path, Any] = dict(result.items())
    sets |= {"index": work.index, "expires": expires()}
    try:
        item = table.update(
            keys.part(work.job_id, work.split, work.index),
            sets=sets,
            removes=("owner", "lease", "not_before", "form"),
            when=_OPEN,
        )
    except ConditionFailedError as lost:
        item = lost.old or {}
    return _part(item).done


def wait(work: PartWork, owner: str, until: float, *, counts: bool, put: Mapping[Any, Any]) -> None:
    """Lets a part wait under a new wake number. `put` is what `Lease.put_aside` says of it.

    Raises:
        LostLeaseError: another worker took over.
    """
    wake = work.wake + 1
    try:
        table.update(
            keys.part(work.job_id, work.split, work.index),
            sets={"not_before": until, "wake": wake, **put},
            adds={} if counts else {"failures": -1},
            removes=("owner", "lease"),
            when=_OPEN & Attr("owner").eq(owner),
        )
    except ConditionFailedError as lost:
        if not (lost.old and lost.old.get("wake") == wake):
            raise LostLeaseError from lost


def block(work: PartWork, run: Run, form: str) -> None:
    """Lets a part wait for a person, under a new wake number. The try was no failure.

    Raises:
        LostLeaseError: another worker took over.
    """
    try:
        _put_back(work, run, {"form": form, "wake": work.wake + 1})
    except ConditionFailedError as lost:
        if not (lost.old and lost.old.get("form") == form):
            raise LostLeaseError from lost


def put_back(work: PartWork, run: Run) -> None:
    """Gives up the lease of a part whose job waits for a person: it is handed out anew with its range."""
    with suppress(ConditionFailedError):
        _put_back(work, run, {"wake": 0})


def _put_back(work: PartWork, run: Run, sets: dict[Path, Any]) -> None:
    table.update(
        keys.part(work.job_id, work.split, work.index),
        sets={**sets, "asked": True},
        adds={"failures": -1},
        removes=("owner", "lease", "not_before"),
        when=_OPEN & Attr("owner").eq(run.owner),
    )


def unblock(work: PartWork, form: str) -> Part:
    """Lets a part go on that waits for this form. Returns it as it then stands."""
    try:
        item = table.update(
            keys.part(work.job_id, work.split, work.index),
            removes=("form",),
            when=Attr("form").eq(form),
        )
    except ConditionFailedError as lost:
        item = lost.old or {"index": work.index}
    return _part(item)


def let_go(work: PartWork, run: Run) -> None:
    """Frees the lease of a part after a bug; the failure stays counted."""
    try:
        table.update(
            keys.part(work.job_id, work.split, work.index),
            removes=("owner", "lease"),
            when=Attr("owner").eq(run.owner),
        )
    except ConditionFailedError:
        return


def count(work: PartWork, *, ok: bool) -> bool:
    """Counts an ended part at its range, and a range that is full at the top. True if everything is counted.

    Safe to repeat, and repeated by whoever finds a shard full: the worker that filled it may have died
    before it could report.
    """
    range_no = range_of(work.index)
    shard = _add(
        keys.join_shard(work.job_id, work.split, range_no, work.generation),
        work.index,
        failed=0 if ok else 1,
    )
    if shard.completed < len(members(range_no, work.total)):
        return False
    top = _add(keys.join(work.job_id, work.split, work.generation), range_no, failed=shard.failed)
    return top.completed == ranges(work.total)


def read(work: PartWork) -> Part:
    """A part as it stands."""
    return _part(table.get(keys.part(work.job_id, work.split, work.index)) or {"index": work.index})


def counted(job_id: str, split: str, generation: int) -> Count:
    """The top of a join: ranges that are full, parts that failed in them."""
    item = table.get(keys.join(job_id, split, generation))
    return _count(item) if item else Count()


def uncounted(work: RangeWork) -> list[int]:
    """The parts of a range that have not been counted."""
    key = keys.join_shard(work.job_id, work.split, work.range_no, work.generation)
    item = table.get(key) or {}
    return sorted(set(members(work.range_no, work.total)) - item.get("members", set()))


def reopen(job_id: str, split: str, total: int, until: float) -> None:
    """Opens the parts that failed up to a moment, so that they can be worked again. Those with a value keep it."""
    for outcome in outcomes(job_id, split, total):
        if outcome.ok:
            continue
        with suppress(ConditionFailedError):
            table.update(
                keys.part(job_id, split, outcome.index),
                sets={"failures": 0, "wake": 0},
                removes=("reason", "detail", "began", "ended", "owner", "lease", "not_before"),
                when=Attr("reason").exists() & Attr("ended").lte(until),
            )


def outcomes(job_id: str, split: str, total: int) -> Iterator[Outcome]:
    """How each part ended, in order, one page of one range in memory at a time."""
    for range_no in range(ranges(total)):
        for item in table.query(keys.parts(job_id, split, range_no), "PART#"):
            if "reason" in item:
                yield Outcome(item["index"], None, item["reason"])
            elif _part(item).ended:
                yield Outcome(item["index"], loaded_value(item))


def _add(key: keys.Key, member: int, *, failed: int) -> Count:
    """Counts a member once: the counter and the memory of who was counted move in one write."""
    try:
        item = table.update(
            key,
            sets={"expires": expires()},
            adds={"completed": 1, "failed": failed, "members": {member}},
            when=~Attr("members").contains(member),
        )
    except ConditionFailedError as lost:
        item = lost.old or {}
    return _count(item)


def _count(item: Item) -> Count:
    return Count(item.get("completed", 0), item.get("failed", 0))


def _part(item: Item) -> Part:
    known = {k: v for k, v in item.items() if k not in ("value", "ref")}
    return Part.model_validate({**known, "done": "value" in item or "ref" in item})
