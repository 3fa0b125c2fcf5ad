"""What to do with a message, given what the table says of its job. Everything that can be decided is decided here.

The claim's condition (aws/store.py) is `claimable` written out for DynamoDB; a property test holds them together.
"""

from dataclasses import dataclass

from stafette.core.job import MOST_FAILURES, VERSION, Head, Lease, Part, Status
from stafette.core.messages import Handoff, PartWork, ToJob


@dataclass(frozen=True, slots=True)
class Work:
    """The lease is ours: do the work."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The lease is ours, but so many tries came to nothing that the job ends here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resend:
    """This work is finished, but what follows from it may not have left."""


@dataclass(frozen=True, slots=True)
class Again:
    """This work waits, and the delayed copy that ends the wait may not have left or came before its time."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody holds the lease: come back when it ends (seconds since the epoch)."""

    until: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """This work waits for a person, who may not have been told."""

    form: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Older than where the job is."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not for this job."""

    reason: str


Decision = Work | GiveUp | Resend | Again | Wait | Blocked | Drop | Refuse


def claimable(head: Head, message: Handoff, now: float) -> bool:
    """Whether the claim of this message would succeed."""
    return (
        head.status is Status.ACTIVE
        and head.stage == message.stage
        and head.handoff == message.handoff
        and head.generation == message.generation
        and head.v <= VERSION
        and _free(head, message.wake, now)
    )


def decide(head: Head | None, message: Handoff, owner: str, now: float) -> Decision:
    """What to do with a message for a stage, whether its claim went through (then `owner` holds the head) or not."""
    if head is None:
        return Refuse("unknown_job")
    if head.v > VERSION:
        return Refuse("unknown_version")
    if head.expired is not None:
        return Drop()
    if message.generation != head.generation:
        return _other_generation(head, message)
    if message.handoff in head.won:
        return Resend() if head.last == message.handoff else Drop()
    if head.handoff != message.handoff or head.stage != message.stage:
        return Refuse("wrong_stage")
    if head.status.ended:
        # The worker that ended the job here may have died before it could say so.
        return Resend()
    if head.status is Status.BLOCKED:
        return Blocked(head.form or "")
    return _lease(head, message.wake, owner, now)


def decide_part(
    head: Head | None, part: Part | None, message: PartWork, owner: str, now: float
) -> Decision:
    """The same for a part of a fan-out, which has a lease of its own; `part` is None if it was never claimed."""
    if head is None:
        return Refuse("unknown_job")
    if head.v > VERSION:
        return Refuse("unknown_version")
    if message.generation != head.generation:
        return _other_generation(head, message)
    if head.status is Status.BLOCKED and head.stage == message.stage:
        return Blocked(head.form or "")
    if head.status is not Status.ACTIVE or head.stage != message.stage:
        return Drop()
    if part is None:
        return Work()
    if part.ended:
        return Resend()
    if part.form is not None:
        return Blocked(part.form)
    if message.wake == 0 < part.wake and part.lease <= now:
        # Handed out anew with its range, while it waits: the copy that ends the wait may be of an older generation.
        return Again()
    return _lease(part, message.wake, owner, now)


def _other_generation(head: Head, message: ToJob) -> Decision:
    # The job was opened again since, and all that follows from that was sent anew.
    return Drop() if message.generation < head.generation else Refuse("unknown_generation")


def _free(held: Lease, wake: int, now: float) -> bool:
    return held.wake == wake and held.lease <= now and held.not_before <= now


def _lease(held: Lease, wake: int, owner: str, now: float) -> Decision:
    if held.owner == owner and held.lease > now:
        # Ours: also when the answer to our claim was lost and its repetition failed.
        return GiveUp("attempts_exhausted") if held.failures > MOST_FAILURES else Work()
    if held.lease > now:
        return Wait(held.lease)
    if wake == held.wake - 1 or (wake == held.wake and held.not_before > now):
        return Again()
    if wake < held.wake:
        return Drop()
    if wake > held.wake:
        return Refuse("unknown_wake")
    # Free by now: it was taken when we tried, and let go since. The next delivery will find it so.
    return Wait(now)
