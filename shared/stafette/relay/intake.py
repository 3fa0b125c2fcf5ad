"""How a job starts: the request is stored, then the head, then what follows leaves. Asked twice is one job."""

from collections.abc import Callable

from stafette import clock, trace
from stafette.aws import queues, store
from stafette.core.errors import RefusedError
from stafette.core.follow_ups import follow_ups
from stafette.core.job import DEADLINE, FIRST_LOOK, Head, Status, known
from stafette.core.messages import Request, fingerprint, job_id, read_request
from stafette.relay.batch import Delivery, Return
from stafette.relay.carry import carry

FIRST_STAGE = "asked"
# The name under which the first stage takes what was asked.
ASKED = "Asked"


def take_request(delivery: Delivery, then: str, check: Callable[[Request], None]) -> Return | None:
    """Takes one message from outside and starts the job that it asks for.

    Args:
        then: the function that every new job goes to.
        check: refuses a request that no flow can take.

    Raises:
        RefusedError: the body is not a request, or another one came under the same request id.
    """
    value = queues.from_outside(delivery.body)
    if value is None:
        trace.info("a service's test message", id=delivery.id)
        return None
    request = read_request(value)
    check(request)
    now = clock.now()
    head = new_head(request, delivery.origin, then, now)
    asked = {"flow": request.flow, "input": request.input}
    # Of two requests under one id, the one that is stored first is the job; before that, no head is put.
    standing = store.put_request(head.job_id, asked, now)
    if standing is not None and fingerprint(standing) != head.fingerprint:
        raise _conflict(request)
    # Asked before: the head is there too, unless the worker that was to put it died in between.
    found = known((store.head(head.job_id) if standing is not None else None) or store.start(head))
    if found is not None and found.fingerprint != head.fingerprint:
        raise _conflict(request)
    if found is None:
        trace.info("a job starts", job_id=head.job_id, trace_id=head.trace_id, tenant=head.tenant)
    head = found or head
    if head.last == "intake":
        carry(head.job_id, follow_ups(head, now, {ASKED: asked}))
    return None


def new_head(request: Request, message_id: str, then: str, now: float) -> Head:
    """The head of the job that a request asks for."""
    budget = request.budget
    return Head(
        job_id=job_id(request.tenant, request.request_id, message_id),
        tenant=request.tenant,
        flow=request.flow or "",
        stage=FIRST_STAGE,
        status=Status.ACTIVE,
        next=then,
        handoff=then,
        last="intake",
        won={"intake": 1},
        fingerprint=fingerprint({"flow": request.flow, "input": request.input}),
        created=now,
        moved=now,
        deadline=now + DEADLINE,
        due=now + FIRST_LOOK,
        cap_micro=round(budget.usd * 1_000_000) if budget and budget.usd else None,
        cap_tokens=budget.tokens if budget else None,
    )


def _conflict(request: Request) -> RefusedError:
    return RefusedError(
        f"request id {request.request_id} was used before for another request",
        reason="request_id_conflict",
    )
