"""What a worker knows of its job. Plain data: the relay makes it, stages and agents read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at one piece of work.

    Attributes:
        job_id: the job.
        trace_id: 32 hex digits, the same for everything done for the job.
        tenant: on whose behalf.
        flow: the kind of job; empty before routing.
        handoff: the id of the work within its job, for example `classify` or `enrich.000.0007`.
        attempt: the fence number: only grows, also over waits.
        owner: the token that this attempt holds its lease under.
        ends: when the invocation is over, in seconds since the epoch.
        agent: the agent that routing chose for the job, if it chose one.
        part: the position of a part in its fan-out, else None.
        answers: what people answered to the forms of this work, by the form's name.
    """

    job_id: str
    trace_id: str
    tenant: str
    flow: str
    handoff: str
    attempt: int
    owner: str
    ends: float
    part: int | None = None
    agent: str | None = None
    answers: Mapping[str, Any] = field(default_factory=dict, compare=False)
