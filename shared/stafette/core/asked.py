"""A form that was asked: once however often its work runs, answered at most once, and with a deadline."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from stafette.core.form import Form, Scope
from stafette.core.job import LONGEST_LIFE, Head
from stafette.core.messages import PartWork
from stafette.core.run import Run

VERSION = 1
# Seconds that are left for the work itself after the last answer that a form waits for.
_AFTERWARDS = 86_400


class State(StrEnum):
    """Of a form that was asked."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"


class Asked(BaseModel):
    """A form that was asked.

    Attributes:
        id: unique within its job; derived, so that the same work asks the same form.
        handoff: the work that asked.
        work: the part that asked; None where a stage did, whose work the head knows.
        round: raised when it is asked again after nobody answered.
        asked, deadline, closed: seconds since the epoch.
        by: who answered, in their own words.
        due: when sweep is to look at it; None once all that follows from it has left.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    v: int = VERSION
    id: str
    job_id: str
    tenant: str
    handoff: str
    scope: Scope
    name: str
    question: str
    answers: dict[str, Any]
    facts: dict[str, Any]
    work: PartWork | None = None
    state: State = State.OPEN
    round: int = 0
    asked: float
    deadline: float
    closed: float | None = None
    answer: dict[str, Any] | None = None
    by: str | None = None
    due: float | None = None


def form_id(scope: Scope, handoff: str, name: str) -> str:
    """The id of a form within its job: what the whole job needs is asked once for all of its work."""
    return f"job.{name}" if scope == "job" else f"{handoff}.{name}"


def asked(form: Form, run: Run, head: Head, work: PartWork | None, now: float) -> Asked:
    """The record of a form as it is asked. No deadline lies beyond what the job may live."""
    last = head.created + LONGEST_LIFE - _AFTERWARDS
    return Asked(
        id=form_id(form.scope, run.handoff, form.name),
        job_id=run.job_id,
        tenant=run.tenant,
        handoff=run.handoff,
        scope=form.scope,
        name=form.name,
        question=form.question,
        answers=form.schema,
        facts=form.facts,
        work=work if form.scope == "work" else None,
        asked=now,
        deadline=max(now, min(now + form.seconds, last)),
    )


def job_deadline(head: Head, form: Asked) -> float:
    """The deadline of a job that waits for a person: the answer may come as late as it may, and is worked then."""
    return max(head.deadline, form.deadline + _AFTERWARDS)
