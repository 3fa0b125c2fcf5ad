"""The writes of the protocol on heads, results and journal: one function each, with the condition that guards it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from boto3.dynamodb.conditions import Attr, ConditionBase, Key

from stafette import clock, settings
from stafette.aws import artifacts, keys, table
from stafette.aws.table import ConditionFailedError, Item, Path
from stafette.core import job
from stafette.core.body import read_json, whole_text
from stafette.core.errors import PermanentError, TransientError
from stafette.core.follow_ups import Journal
from stafette.core.job import Head, Lease, Move, Status
from stafette.core.messages import Handoff, Inputs, Ref
from stafette.core.run import Run

# A value of more bytes goes to S3. Far under the limit of an item, by AWS's count and by any emulator's.
VALUE_LIMIT = 32_768

# What is taken off a head that waits no longer, and off one that nobody has to look at.
WAITING = ("owner", "lease", "not_before")
DUE = ("due", "due_shard")
# What tells how long the work at hand was put aside.
ASIDE = ("waits", "aside", "why")


class LostLeaseError(TransientError):
    """Another worker took over: nothing that this one found is stored."""

    reason = "lost_lease"


@dataclass(frozen=True, slots=True)
class Result:
    """What a winning attempt came to."""

    model: str
    value: Any
    split: bool = False
    notice: dict[str, str] | None = None


def expires() -> int:
    """When what is written now may vanish: the longest life of a job, plus the retention."""
    return int(clock.now()) + job.LONGEST_LIFE + settings.retention()


# --- values --------------------------------------------------------------------------------------------


def stored_value(value: Any, folder: str) -> dict[str, Any]:
    """Attributes that hold a JSON value: the text itself, or where it lies in S3."""
    text = whole_text(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    if len(text.encode()) <= VALUE_LIMIT:
        return {"value": text}
    ref = artifacts.put(text, folder)
    return {"ref": ref.model_dump(include={"key", "bytes", "sha256"})}


def loaded_value(item: Mapping[str, Any]) -> Any:
    """The JSON value that `stored_value` put into an item."""
    return read_json(item["value"] if "value" in item else artifacts.get(Ref(**item["ref"])))


# --- heads ---------------------------------------------------------------------------------------------


def start(head: Head) -> Head | None:
    """Puts the head of a new job. Returns the one that stands there if the job exists already."""
    item = head.model_dump(exclude_none=True, mode="json") | {
        "due_shard": keys.index_shard("DUE", head.job_id),
        "list_shard": keys.index_shard("JOB", head.job_id),
        "listed_at": head.created,
    }
    standing = table.put_if_absent(keys.head(head.job_id), item)
    return Head.from_item(standing) if standing else None


def head(job_id: str) -> Head | None:
    """The head as it stands."""
    item = table.get(keys.head(job_id))
    return Head.from_item(item) if item else None


def claim(message: Handoff, owner: str, until: float, now: float) -> Head | None:
    """Claims a job and reads it, in one write. Returns the head as it stands, None if there is none.

    The caller learns from `decide` whether the claim is its own: also when the answer to it was lost, and
    its repetition by botocore failed on the lease that the first had set.
    """
    try:
        return Head.from_item(
            take_lease(
                keys.head(message.job_id),
                message.wake,
                owner,
                until,
                now,
                _takes(message),
                _look(message.job_id, until) if until - now > job.SOON else None,
            )
        )
    except ConditionFailedError as lost:
        return Head.from_item(lost.old) if lost.old else None


def put_off(message: Handoff, until: float, now: float, why: str) -> Head | None:
    """Lets a job wait that nobody has claimed, under a new wake number. Returns the head as it then stands; None if a
    claim would have failed as well, and tells why."""
    try:
        item = put_off_lease(
            keys.head(message.job_id), message.wake, until, now, why, _takes(message)
        )
    except ConditionFailedError as lost:
        item = lost.old or {}
        if (item.get("wake"), float(item.get("not_before", 0))) != (message.wake + 1, until):
            return None  # else ours: the answer was lost
    return Head.from_item(item)


def _takes(message: Handoff) -> ConditionBase:
    return (
        Attr("status").eq(Status.ACTIVE.value)  # not for a job that ended or is blocked
        & Attr("stage").eq(message.stage)  # not for an older or newer state
        & Attr("handoff").eq(message.handoff)  # not for a stage that routing did not choose
        & Attr("generation").eq(message.generation)  # not from before it was opened again
        & Attr("v").lte(job.VERSION)  # not for a head that newer code wrote
    )


def take_lease(
    key: keys.Key,
    wake: int,
    owner: str,
    until: float,
    now: float,
    when: ConditionBase,
    sets: Mapping[Path, Any] | None = None,
) -> Item:
    """The write that claims whatever has a lease. Fails while somebody holds it, or before its time."""
    return table.update(
        key,
        sets={"owner": owner, "lease": until, **(sets or {})},
        adds={"attempt": 1, "failures": 1},  # a failure until its work says otherwise
        when=when & _free(wake, now),
    )


def put_off_lease(
    key: keys.Key,
    wake: int,
    until: float,
    now: float,
    why: str,
    when: ConditionBase,
    sets: Mapping[Path, Any] | None = None,
) -> Item:
    """The write that lets something wait which could be claimed. It is no attempt and no failure."""
    first: dict[Path, Any] = {} if wake else {"aside": now}
    return table.update(
        key,
        sets={"not_before": until, "wake": wake + 1, "why": why, **first, **(sets or {})},
        when=when & _free(wake, now),
    )


def _free(wake: int, now: float) -> ConditionBase:
    asleep = Attr("wake").eq(wake) if wake else Attr("wake").eq(0) | Attr("wake").not_exists()
    return (
        asleep  # not for an older or newer wake
        & (Attr("lease").not_exists() | Attr("lease").lte(now))  # nobody holds it
        & (Attr("not_before").not_exists() | Attr("not_before").lte(now))  # it does not wait
    )


def advance(run: Run, move: Move, now: float) -> Head:
    """Moves a job on: names the attempt that won, frees the lease, and says what is next.

    Raises:
        LostLeaseError: another worker took over, or the job was cancelled.
    """
    sets: dict[Path, Any] = {
        "stage": move.stage,
        ("won", run.handoff): run.attempt,
        "last": run.handoff,
        "moved": now,
        "failures": 0,
        "wake": 0,
    }
    optional = {
        "next": move.next,
        "handoff": move.handoff,
        "over": move.over,
        "parts": None if move.parts is None else len(move.parts),
    }
    sets |= {name: value for name, value in optional.items() if value is not None}
    removes = (*WAITING, *ASIDE, *(name for name, value in optional.items() if value is None))
    routed = {"flow": move.flow, "agent": move.agent}
    sets |= {name: value for name, value in routed.items() if value is not None}
    if move.next is None:
        sets["status"] = Status.DONE.value
        removes += DUE
    try:
        return Head.from_item(
            table.update(keys.head(run.job_id), sets=sets, removes=removes, when=held_by(run))
        )
    except ConditionFailedError as lost:
        old = Head.from_item(lost.old) if lost.old else None
        if old and old.won.get(run.handoff) == run.attempt:
            return old  # ours: the answer was lost and botocore repeated the call
        raise LostLeaseError from lost


def wait(run: Run, until: float, *, wake: int, counts: bool, put: Mapping[Any, Any]) -> Head:
    """Lets a job wait: gives up the lease under a new wake number. `counts` keeps the try as a failure.

    Args:
        put: what `Lease.put_aside` says of it.

    Raises:
        LostLeaseError: another worker took over, or the job was cancelled.
    """
    try:
        return Head.from_item(
            table.update(
                keys.head(run.job_id),
                sets={"not_before": until, "wake": wake, **put},
                adds={} if counts else {"failures": -1},
                removes=("owner", "lease"),
                when=held_by(run),
            )
        )
    except ConditionFailedError as lost:
        old = Head.from_item(lost.old) if lost.old else None
        if old and (old.attempt, old.wake) == (run.attempt, wake):
            return old
        raise LostLeaseError from lost


def let_go(run: Run) -> None:
    """Frees the lease after a bug, so that the redelivery does not find it held. The failure stays counted."""
    with suppress(ConditionFailedError):
        table.update(keys.head(run.job_id), removes=("owner", "lease"), when=held_by(run))


def end(
    job_id: str,
    status: Status,
    now: float,
    *,
    reason: str,
    detail: str,
    held: Run | None = None,
    began: float | None = None,
) -> Head | None:
    """Ends a job that has not ended: by the worker that holds it, else by a person or by a deadline.

    Args:
        began: when the try began that ended it.

    A worker has a message that comes back until all that follows has left. Without one the job stays due for that,
    until it may `rest`.

    Returns the head as it then stands: ended, whoever ended it.

    Raises:
        LostLeaseError: `held` says who holds it, and somebody else does.
    """
    active = Attr("status").is_in([Status.ACTIVE.value, Status.BLOCKED.value]) & Attr("v").lte(
        job.VERSION
    )
    ending: dict[Path, Any] = {
        "status": status.value,
        "reason": reason[:60],
        "detail": detail[:300],
        "ended": now,
    }
    if held is None:
        ending |= first_look(job_id, now)
    if began is not None:
        ending["began"] = began
    try:
        return Head.from_item(
            table.update(
                keys.head(job_id),
                sets=ending,
                removes=(*WAITING, "form", *(() if held is None else DUE)),
                when=active if held is None else held_by(held),
            )
        )
    except ConditionFailedError as lost:
        old = Head.from_item(lost.old) if lost.old else None
        if held is not None and not (old and old.status.ended and old.attempt == held.attempt):
            raise LostLeaseError from lost
        return old


def rest(head: Head) -> None:
    """Takes an ended job out of what is looked at: all that follows from its end has left."""
    with suppress(ConditionFailedError):
        table.update(
            keys.head(head.job_id),
            removes=DUE,
            when=Attr("status").eq(head.status.value) & Attr("generation").eq(head.generation),
        )


def reopen(job_id: str, now: float) -> Head | None:
    """Opens a failed job at the stage where it failed, in a new generation. None if it has not failed."""
    try:
        return Head.from_item(
            table.update(
                keys.head(job_id),
                sets={
                    "status": Status.ACTIVE.value,
                    "failures": 0,
                    "last": "reopen",
                    "moved": now,
                    "deadline": now + job.DEADLINE,
                    **first_look(job_id, now),
                },
                adds={"generation": 1},
                removes=(*WAITING, *ASIDE, "reason", "detail", "began", "ended", "wake"),
                when=Attr("status").eq(Status.FAILED.value)
                & Attr("v").lte(job.VERSION)
                & Attr("expired").not_exists(),  # what it would go on from is gone
            )
        )
    except ConditionFailedError as lost:
        old = Head.from_item(lost.old) if lost.old else None
        ours = old and old.status is Status.ACTIVE and (old.last, old.moved) == ("reopen", now)
        return old if ours else None  # ours: the answer was lost


def first_look(job_id: str, now: float) -> dict[Path, Any]:
    """What makes sweep look at a job some time from now."""
    return {**_look(job_id, now + job.FIRST_LOOK), "look": job.FIRST_LOOK}


def _look(job_id: str, due: float) -> dict[Path, Any]:
    return {"due": due, "due_shard": keys.index_shard("DUE", job_id)}


def held_by(run: Run) -> ConditionBase:
    """The fence: the attempt still holds the job, and nobody ended it meanwhile."""
    return (
        Attr("owner").eq(run.owner)
        & Attr("attempt").eq(run.attempt)
        & Attr("status").eq(Status.ACTIVE.value)
    )


# --- what is overdue -------------------------------------------------------------------------------


def due(now: float) -> Iterator[tuple[str, str | None]]:
    """What is to be looked at: the id of a job, and of a form of it if it is the form."""
    for number in range(keys.SHARDS):
        condition = Key("due_shard").eq(f"DUE#{number}") & Key("due").lte(now)
        for item in table.query_index("due", condition):
            form = item["sk"].startswith("FORM#")
            yield (
                item["pk"].removeprefix("JOB#"),
                item["sk"].removeprefix("FORM#") if form else None,
            )


def look_again(head: Head, due: float, look: float) -> bool:
    """Pushes out when a job is looked at. False if somebody else did, or it ended."""
    try:
        table.update(
            keys.head(head.job_id),
            sets={"due": due, "look": look},
            when=Attr("due").eq(head.due),
        )
    except ConditionFailedError as lost:
        # Ours when the answer was lost. Another sweep's if it came to the same: then both push, which is harmless.
        old = Head.from_item(lost.old) if lost.old else None
        return old is not None and (old.due, old.look) == (due, look)
    return True


# --- results and journal ---------------------------------------------------------------------------


def put_request(job_id: str, value: Any, now: float) -> Any | None:
    """Stores what was asked for as the first result of a job. Returns what stands there if there is something."""
    item = {
        "model": "Asked",
        **stored_value(value, job_id),
        "began": now,
        "ended": now,
        "expires": expires(),
    }
    standing = table.put_if_absent(keys.result(job_id, "intake", 1), item)
    return loaded_value(standing) if standing else None


def put_result(run: Run, move: Move, began: float, ended: float, lease: Lease) -> None:
    """Stores what an attempt came to, immutable, before the state names it. Its span rides in it, with what the
    lease knows of earlier tries."""
    aside = {} if lease.aside is None else {name: getattr(lease, name) for name in ASIDE}
    item = {
        "model": move.model,
        **stored_value(move.value, run.job_id),
        "began": began,
        "ended": ended,
        "expires": expires(),
        **aside,
        **({"split": True, "over": move.over} if move.over is not None else {}),
        **({"notice": move.notice} if move.notice else {}),
    }
    table.put_if_absent(keys.result(run.job_id, run.handoff, run.attempt), item)


def put_failure(run: Run, reason: str, detail: str, began: float, ended: float) -> None:
    """Stores why an attempt came to nothing: a failure is a result too."""
    item = {
        "reason": reason,
        "detail": detail[-VALUE_LIMIT // 8 :],
        "began": began,
        "ended": ended,
        "expires": expires(),
    }
    table.put_if_absent(keys.result(run.job_id, run.handoff, run.attempt), item)


def winning_result(head: Head, handoff: str) -> Result | None:
    """The result that a finished handoff won with; None once it has expired."""
    item = table.get(keys.result(head.job_id, handoff, head.won[handoff]))
    return _result(item) if item else None


def split_list(job_id: str, split: str, attempt: int) -> list[Any]:
    """The ordered list of parts that a split came to."""
    item = table.get(keys.result(job_id, split, attempt))
    if item is None:
        raise PermanentError(f"the parts of {split} have expired", reason="result_missing")
    parts: list[Any] = loaded_value(item)
    return parts


def results_so_far(head: Head) -> Inputs:
    """The winning values of a job by the name of their model: what a message without inputs stands for."""
    won = {keys.result(head.job_id, handoff, n)[1] for handoff, n in head.won.items()}
    found = (item for item in table.query(keys.job(head.job_id), "RESULT#") if item["sk"] in won)
    # The list of a fan-out is no input, and may be long: it is not even loaded.
    given = (item for item in found if not item.get("split"))
    results = [_result(item) for item in sorted(given, key=lambda item: item["ended"])]
    return {result.model: result.value for result in results}


def last_failure(job_id: str, handoff: str) -> tuple[str, str] | None:
    """Reason and detail of the last attempt at a handoff that left word of why it came to nothing."""
    last = None
    for item in table.query(keys.job(job_id), f"RESULT#{handoff}#"):
        if "reason" in item:
            last = item["reason"], item["detail"]
    return last


def put_journal(job_id: str, journal: Journal) -> None:
    """Adds an entry to the journal; the first to write it wins."""
    item = {**journal.entry, "expires": expires()}
    table.put_if_absent(keys.event(job_id, journal.handoff, journal.n), item)


def _result(item: Item) -> Result:
    return Result(item["model"], loaded_value(item), item.get("split", False), item.get("notice"))
