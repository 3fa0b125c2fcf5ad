"""The head of a job: where it is, who works on it, and what has won. Under 1 KB, so that a write is one unit."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from stafette.core.messages import UnknownVersionError, trace_id

VERSION = 1
# A claim is counted as a failure until its work says otherwise, so a killed worker counts without a write.
MOST_FAILURES = 5
# Seconds that a job may take in all; sweep then ends it.
DEADLINE = 86_400
# Seconds after which a job that has not moved is looked at; doubled each time.
FIRST_LOOK = 900
# Seconds that an invocation may take for its queue to make up soon enough for a killed worker: the message comes back
# after six times the function's timeout. Whoever may take longer is looked for when its lease ends.
SOON = 120
# Seconds that the longest job may live: everything but the head is kept so long, plus the retention.
LONGEST_LIFE = 14 * 86_400


class Status(StrEnum):
    """Of a job, whatever stage it is at."""

    ACTIVE = "active"
    BLOCKED = "blocked"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens unless a person reopens the job."""
        return self in (Status.DONE, Status.FAILED, Status.CANCELLED)


class Lease(BaseModel):
    """Who may work on something, and since how often. A job and a part of a fan-out are leased alike.

    Attributes:
        waits: how often this work was put aside, to come back later.
        aside: when it first was.
        why: what for, the last time.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    attempt: int = 0
    failures: int = 0
    owner: str | None = None
    lease: float = 0
    waits: int = 0
    aside: float | None = None
    why: str | None = None
    not_before: float = 0
    wake: int = 0

    def put_aside(self, why: str, now: float) -> dict[str, Any]:
        """What remains known of work that comes back later, until it is done: attributes of its lease."""
        since = now if self.aside is None else self.aside
        return {"waits": self.waits + 1, "aside": since, "why": why[:60]}


class Head(Lease):
    """A job.

    Attributes:
        stage: the last stage completed.
        next: the function that the job waits for.
        handoff: the id of the work that the job waits for.
        last: the handoff that brought it to this stage.
        won: the winning attempt of each handoff that is finished.
        parts: how many parts a fan-out has, while the job waits for its join.
        over: the function that works the parts.
        generation: raised when a failed job is reopened: what was sent before is then too old.
        moved: when it came to this stage.
        began: when the try began that made it fail.
        ended: when it failed or was cancelled.
        form: the id of the form that it waits for, while it is blocked.
        asked: the last handoff that asked a person.
        agent: the agent that its flow is to ask, where routing chose one.
        cap_micro, cap_tokens: what it may spend on models, where its request says so.
        expired: when all but the head was let go: nothing follows from it any more.
    """

    v: int = VERSION
    job_id: str
    tenant: str
    flow: str
    stage: str
    status: Status
    next: str | None = None
    handoff: str | None = None
    last: str
    won: dict[str, int]
    parts: int | None = None
    over: str | None = None
    generation: int = 0
    reason: str | None = None
    detail: str | None = None
    form: str | None = None
    asked: str | None = None
    fingerprint: str
    created: float
    moved: float
    began: float | None = None
    ended: float | None = None
    deadline: float
    due: float | None = None
    look: float = FIRST_LOOK
    agent: str | None = None
    cap_micro: int | None = None
    cap_tokens: int | None = None
    expired: float | None = None

    @property
    def trace_id(self) -> str:
        """The trace of the job."""
        return trace_id(self.job_id)

    @classmethod
    def from_item(cls, item: dict[str, Any]) -> "Head":
        """A head as the table gives it."""
        return cls.model_validate(item)


def known(head: Head | None) -> Head | None:
    """A head that this code may act on.

    Raises:
        UnknownVersionError: newer code wrote it, and only newer code knows what follows from it.
    """
    if head is not None and head.v > VERSION:
        raise UnknownVersionError(f"version {head.v} of job {head.job_id} is newer than {VERSION}")
    return head


@dataclass(frozen=True, slots=True)
class Move:
    """What a finished piece of work makes of its job.

    Attributes:
        stage: the stage that is completed by it.
        model: the name under which later stages take its value.
        value: the value, as JSON has it; of a split, the list of parts.
        next: the function that goes on; None ends the job.
        handoff: the id of that function's work.
        flow, agent: set by routing.
        over: the function that works the parts, if the value is a list of parts.
        notice: attributes of a side message.
    """

    stage: str
    model: str
    value: Any
    next: str | None = None
    handoff: str | None = None
    flow: str | None = None
    agent: str | None = None
    over: str | None = None
    notice: dict[str, str] | None = None

    @property
    def parts(self) -> list[Any] | None:
        """The parts that the value splits the work into."""
        return self.value if self.over is not None else None


class Part(Lease):
    """One part of a fan-out; it has ended when it is `done` or there is a `reason` why not.

    Attributes:
        form: the id of the form that it waits for.
        asked: whether it ever asked a person.
    """

    index: int
    form: str | None = None
    asked: bool = False
    done: bool = False
    reason: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the part has a result, be it a failure."""
        return self.done or self.reason is not None
