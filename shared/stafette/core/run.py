"""What a worker knows of its job. Plain data: the relay makes it, stages and agents read it."""

from dataclasses import dataclass


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
        part: the position of a part in its fan-out, else None.
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
