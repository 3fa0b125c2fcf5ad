"""The writes of forms, and of the jobs that wait for them: a form is asked once, answered at most once, and looked at
by sweep until all that follows has left.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from boto3.dynamodb.conditions import Attr

from stafette.aws import keys, table
from stafette.aws.store import (
    DUE,
    WAITING,
    LostLeaseError,
    expires,
    first_look,
    held_by,
    loaded_value,
    stored_value,
)
from stafette.aws.table import ConditionFailedError, Item, Path
from stafette.core import asked, job
from stafette.core.asked import Asked, State, job_deadline
from stafette.core.job import Head, Status
from stafette.core.run import Run

# What a form asks and shows may be long: it is kept as one value.
_DOCUMENT = {"question", "answers", "facts", "work"}
_LISTED = ("list_shard", "listed_at")


def ask(form: Asked) -> Asked:
    """Asks a form, unless it stands. One that nobody answered in time is asked again. Returns what stands."""
    waiting = _open(form)
    item: dict[Any, Any] = {
        **form.model_dump(mode="json", exclude_none=True, exclude=_DOCUMENT),
        **stored_value(form.model_dump(mode="json", include=_DOCUMENT), form.job_id),
        **waiting,
        "expires": expires(),
    }
    standing = table.put_if_absent(keys.form(form.job_id, form.id), item)
    if standing is None:
        return form
    if standing["state"] != State.EXPIRED.value:
        return read(standing)
    again: dict[Path, Any] = {
        **waiting,
        "state": State.OPEN.value,
        "round": standing["round"] + 1,
        "asked": form.asked,
        "deadline": form.deadline,
    }
    return _change(form, again, ("closed",), State.EXPIRED, standing["round"])


def answer(form: Asked, value: dict[str, Any], by: str | None, now: float) -> Asked:
    """Answers a form that is open. Returns what stands: the first answer does."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    sets: dict[Path, Any] = {
        **_closed(form, State.ANSWERED, now),
        "answer": text,
        "by": by or "somebody",
    }
    return _change(form, sets, _LISTED, State.OPEN, form.round)


def expire(form: Asked, now: float) -> Asked:
    """Closes a form that nobody answered. Returns what stands."""
    return _change(form, _closed(form, State.EXPIRED, now), _LISTED, State.OPEN, form.round)


def rest(form: Asked) -> None:
    """Takes a closed form out of what is looked at: all that follows from it has left."""
    with suppress(ConditionFailedError):
        table.update(
            keys.form(form.job_id, form.id),
            removes=DUE,
            when=Attr("state").eq(form.state.value) & Attr("round").eq(form.round),
        )


def look_again(form: Asked, due: float) -> bool:
    """Pushes out when a form is looked at. False if somebody else did."""
    try:
        table.update(
            keys.form(form.job_id, form.id), sets={"due": due}, when=Attr("due").eq(form.due)
        )
    except ConditionFailedError as lost:
        return bool(lost.old and lost.old.get("due") == due)
    return True


def get(job_id: str, form_id: str) -> Asked | None:
    """A form as it stands."""
    item = table.get(keys.form(job_id, form_id))
    return read(item) if item else None


def of(job_id: str, start: str = "") -> Iterator[Asked]:
    """The forms of a job whose ids start so, each as it stands."""
    for item in table.query(keys.job(job_id), f"FORM#{start}"):
        yield read(item)


def answers(job_id: str, handoff: str) -> dict[str, Any]:
    """What people answered to the work of a handoff, and to what the whole job asked, by the form's name."""
    found = (form for start in (handoff, "job") for form in of(job_id, f"{start}."))
    return {form.name: form.answer for form in found if form.state is State.ANSWERED}


# --- jobs that wait for one ----------------------------------------------------------------------------


def block(run: Run, head: Head, form: Asked, *, wake: int) -> Head:
    """Lets a job that this worker holds wait for a person, under a new wake number. The try was no failure.

    Raises:
        LostLeaseError: another worker took over, or the job was cancelled.
    """
    try:
        return Head.from_item(
            table.update(
                keys.head(run.job_id),
                sets={**_blocked(head, form), "wake": wake, "asked": run.handoff},
                adds={"failures": -1},
                removes=WAITING,
                when=held_by(run),
            )
        )
    except ConditionFailedError as lost:
        old = Head.from_item(lost.old) if lost.old else None
        if old and (old.status, old.form, old.attempt) == (Status.BLOCKED, form.id, run.attempt):
            return old  # ours: the answer was lost and botocore repeated the call
        raise LostLeaseError from lost


def block_all(head: Head, form: Asked) -> None:
    """Lets a job that waits for its parts wait for a person, unless it went on, ended, or waits for one already."""
    with suppress(ConditionFailedError):
        table.update(
            keys.head(head.job_id),
            sets=_blocked(head, form),
            when=Attr("status").eq(Status.ACTIVE.value)
            & Attr("stage").eq(head.stage)
            & Attr("generation").eq(head.generation),
        )


def allow(head: Head, form: Asked) -> None:
    """Lets a job of which a part waits for a person live until the answer can be worked."""
    until = job_deadline(head, form)
    with suppress(ConditionFailedError):
        table.update(
            keys.head(head.job_id),
            sets={"deadline": until},
            when=Attr("deadline").lt(until) & Attr("status").eq(Status.ACTIVE.value),
        )


def unblock(form: Asked, now: float) -> Head | None:
    """Lets a job go on that waits for this form. Returns the head as it then stands."""
    try:
        return Head.from_item(
            table.update(
                keys.head(form.job_id),
                sets={"status": Status.ACTIVE.value, **first_look(form.job_id, now)},
                removes=("form",),
                when=Attr("status").eq(Status.BLOCKED.value)
                & Attr("form").eq(form.id)
                & Attr("v").lte(job.VERSION),
            )
        )
    except ConditionFailedError as lost:
        return Head.from_item(lost.old) if lost.old else None


def _blocked(head: Head, form: Asked) -> dict[Path, Any]:
    return {
        "status": Status.BLOCKED.value,
        "form": form.id,
        "deadline": job_deadline(head, form),
    }


# --- records -------------------------------------------------------------------------------------------


def _open(form: Asked) -> dict[Path, Any]:
    return {
        "due": form.deadline,
        "due_shard": keys.index_shard("DUE", form.job_id),
        "list_shard": keys.index_shard("FORM", form.job_id),
        "listed_at": form.asked,
    }


def _closed(form: Asked, state: State, now: float) -> dict[Path, Any]:
    # Whoever closes it may die before all that follows has left: sweep looks after that.
    return {
        "state": state.value,
        "closed": now,
        "due": now + job.FIRST_LOOK,
        "due_shard": keys.index_shard("DUE", form.job_id),
    }


def _change(
    form: Asked, sets: dict[Path, Any], removes: tuple[Path, ...], state: State, round_no: int
) -> Asked:
    """Changes a form that is in a state, and none of a newer version. Returns what stands."""
    try:
        item = table.update(
            keys.form(form.job_id, form.id),
            sets=sets,
            removes=removes,
            when=Attr("state").eq(state.value)
            & Attr("round").eq(round_no)
            & Attr("v").lte(asked.VERSION),
        )
    except ConditionFailedError as lost:
        item = lost.old or {}
    return read(item)


def read(item: Item) -> Asked:
    """A form as the table gives it."""
    known = {name: value for name, value in item.items() if name not in ("value", "ref", "answer")}
    given = {"answer": json.loads(item["answer"])} if "answer" in item else {}
    return Asked.model_validate({**known, **loaded_value(item), **given})
