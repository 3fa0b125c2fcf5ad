"""What must happen next, as a pure function of the stored state. The state is the outbox.

Actions are in order: the journal, side messages, and last, alone, what moves this state on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from stafette.core.asked import Asked, State
from stafette.core.job import Head, Status
from stafette.core.joins import members, ranges
from stafette.core.messages import Handoff, Inputs, Notice, PartWork, RangeWork, ToJob

# SQS delays a message by so many seconds at most; a longer wait is sent again and again.
LONGEST_DELAY = 900


@dataclass(frozen=True, slots=True)
class Journal:
    """An entry of the journal: n-th (from 1) of its handoff."""

    handoff: str
    n: int
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Send:
    """A message to the queue of the function `to`, in `delay` seconds."""

    message: ToJob
    delay: int = 0

    @property
    def to(self) -> str:
        """The function."""
        return self.message.to


Action = Journal | Send


def join_handoff(split: str) -> str:
    """The id of the work that joins what `split` spread out."""
    return f"{split}:join"


def follow_ups(
    head: Head,
    now: float,
    inputs: Inputs | None = None,
    parts: Sequence[Any] | None = None,
    notice: dict[str, str] | None = None,
) -> tuple[Action, ...]:
    """What follows from where a job is.

    Args:
        head: the job as stored.
        now: seconds since the epoch, for what is left of a wait.
        inputs: the results so far, to save the receiver a read.
        parts: the list of a fan-out, from the winning result of its split.
        notice: attributes of a side message that the winning result asks for.
    """
    if head.expired is not None:
        return ()  # it was all told, and its journal is gone
    first: tuple[Action, ...] = (*journal_of(head), *_told(head, notice))
    if head.status is Status.BLOCKED:
        return first  # a person moves it on
    if head.status.ended:
        return (*first, Send(_notice(head, "ended", head.generation, {})))
    return (*first, *moving(head, now, inputs, parts))


def journal_of(head: Head) -> tuple[Journal, ...]:
    """The entries that say how the job came to where it is: its last advance or reopening, and its end if it failed."""
    entry = {
        "at": head.moved,
        "stage": head.stage,
        "status": head.status.value,
        "trace_id": head.trace_id,
    }
    if head.status in (Status.FAILED, Status.CANCELLED):
        ending = {
            **entry,
            "at": head.ended or head.moved,
            "handoff": head.handoff,
            "reason": head.reason,
            "detail": head.detail,
        }
        # Whoever advanced it may have died before it could say so.
        came = _came_here(head, {**entry, "status": Status.ACTIVE.value})
        # Per generation one end and, for all but the first, one reopening before it: no gap, none twice.
        return came, Journal("job", 2 * head.generation + 1, ending)
    return (_came_here(head, entry),)


def _came_here(head: Head, entry: dict[str, Any]) -> Journal:
    if head.last == "reopen":
        return Journal("job", 2 * head.generation, entry)
    return Journal(head.last, 1, {**entry, "attempt": head.won[head.last]})


def moving(
    head: Head, now: float, inputs: Inputs | None = None, parts: Sequence[Any] | None = None
) -> tuple[Send, ...]:
    """What moves an active job on: one message, or those of the ranges if it waits for parts to be worked.

    Without `parts` a job that waits for a join is sent its join.
    """
    if head.parts and parts is not None:
        return tuple(Send(_range(head, n, parts)) for n in range(ranges(head.parts)))
    return (handoff_of(head, now, inputs),)


def handoff_of(head: Head, now: float, inputs: Inputs | None = None) -> Send:
    """The message for the work that an active job waits for, delayed while the job has to wait."""
    if head.next is None or head.handoff is None:
        raise ValueError(
            f"job {head.job_id} is {head.status} at {head.stage} and waits for nothing"
        )
    message = Handoff(
        job_id=head.job_id,
        tenant=head.tenant,
        to=head.next,
        generation=head.generation,
        handoff=head.handoff,
        stage=head.stage,
        wake=head.wake,
        inputs=inputs,
    )
    return Send(message, delay_until(head.not_before, now))


def delay_until(moment: float, now: float) -> int:
    """Whole seconds that a message can be delayed by towards a moment: not early, at most what SQS can."""
    return max(0, min(LONGEST_DELAY, ceil(moment - now)))


def part_messages(work: RangeWork) -> tuple[PartWork, ...]:
    """The parts of a range."""
    indexes = members(work.range_no, work.total)
    shared = work.model_dump(
        include={"job_id", "tenant", "to", "generation", "split", "stage", "join_to", "total"}
    )
    return tuple(
        PartWork(**shared, index=index, input=part)
        for index, part in zip(indexes, work.parts, strict=True)
    )


def join_message(work: RangeWork | PartWork) -> Send:
    """What whoever finds the join full sends; the join reads what it needs."""
    message = Handoff(
        job_id=work.job_id,
        tenant=work.tenant,
        to=work.join_to,
        generation=work.generation,
        handoff=join_handoff(work.split),
        stage=work.stage,
    )
    return Send(message)


def _range(head: Head, range_no: int, parts: Sequence[Any]) -> RangeWork:
    if head.over is None or head.next is None or head.parts is None or head.handoff is None:
        raise ValueError(f"job {head.job_id} at {head.stage} does not say where its parts go")
    indexes = members(range_no, head.parts)
    return RangeWork(
        job_id=head.job_id,
        tenant=head.tenant,
        to=head.over,
        generation=head.generation,
        split=head.handoff.split(":")[0],
        stage=head.stage,
        join_to=head.next,
        range_no=range_no,
        total=head.parts,
        parts=list(parts[indexes.start : indexes.stop]),
    )


def _told(head: Head, attributes: dict[str, str] | None) -> tuple[Send, ...]:
    if not attributes:
        return ()
    return (Send(_notice(head, head.stage, 1, attributes)),)


def of_form(form: Asked, head: Head) -> tuple[Action, ...]:
    """What follows from a form: the journal says that it was asked, and what became of it; the world is told of it."""
    first, known = 2 * form.round + 1, {"trace_id": head.trace_id, "stage": head.stage}
    question = Journal(
        form.id, first, {**known, "at": form.asked, "status": "asked", "scope": form.scope}
    )
    if form.closed is not None:
        end: dict[str, Any] = {**known, "at": form.closed, "status": form.state.value}
        if form.state is State.ANSWERED:
            end["by"] = form.by
        return question, Journal(form.id, first + 1, end)
    return question, Send(_notice(head, "asked", form.round, {"form": form.id}, form.id))


def _notice(
    head: Head, event: str, n: int, attributes: dict[str, str], form: str | None = None
) -> Notice:
    return Notice(
        form=form,
        job_id=head.job_id,
        tenant=head.tenant,
        to="notify",
        generation=head.generation,
        event=event,
        n=n,
        flow=head.flow,
        stage=head.stage,
        status=head.status.value,
        reason=head.reason,
        attributes=attributes,
    )
