"""What happens when nobody comes back: burying dead messages, sweeping what is overdue, reopening and cancelling.

Each of these finds the state of a job and sends again what follows from it, or ends the job with a reason.
"""

from collections.abc import Callable
from functools import cache

from stafette import clock, trace
from stafette.aws import dead, forms, parts, queues, retention, store
from stafette.core import asked
from stafette.core.asked import Asked, State
from stafette.core.decide import (
    Again,
    Blocked,
    Drop,
    GiveUp,
    Refuse,
    Resend,
    Wait,
    Work,
    decide,
)
from stafette.core.errors import PermanentError
from stafette.core.follow_ups import handoff_of, of_form, part_messages
from stafette.core.job import FIRST_LOOK, MOST_FAILURES, VERSION, Head, Status, known
from stafette.core.messages import AnyWork, Handoff, PartWork, RangeWork, ToJob
from stafette.relay.batch import Delivery, Return
from stafette.relay.carry import carry, move_on
from stafette.relay.forms import go_on, tell
from stafette.relay.parts import claim_part, count_part, end_part, part_again, parts_wanted
from stafette.relay.stage import fail, resend, run_of, why_it_failed

# --- bury ----------------------------------------------------------------------------------------------


def bury(delivery: Delivery) -> Return | None:
    """Takes a message that was delivered too often: keeps it, and sees to it that its job does not hang."""
    work = _read(delivery.body)
    match work:
        case Handoff():
            reason, returned = _bury_handoff(work, delivery)
        case RangeWork():
            reason, returned = _bury_range(work), None
        case PartWork():
            reason, returned = _bury_part(work, delivery)
        case _:
            reason, returned = "attempts_exhausted", None
    if returned is not None:
        return returned
    known = {"job_id": work.job_id, "tenant": work.tenant} if isinstance(work, ToJob) else {}
    last = store.last_failure(work.job_id, work.handoff) if isinstance(work, Handoff) else None
    dead.keep(
        delivery.id,
        delivery.body,
        function=_came_from(work, delivery),
        reason=reason,
        detail=last[1] if last else "delivered too often, with no word of why",
        at=clock.now(),
        origin=delivery.origin,
        **known,
    )
    return None


def _read(body: str) -> AnyWork | None:
    try:
        return queues.from_body(body)
    except PermanentError:
        return None  # a stranger's, or none of ours: it is kept all the same


def _came_from(work: AnyWork | None, delivery: Delivery) -> str:
    """The function that a dead message was for: it says so, or the service does; only intake takes strangers'."""
    if work is not None:
        return work.to
    return queues.function_of(delivery.source or "") or "intake"


def _bury_handoff(work: Handoff, delivery: Delivery) -> tuple[str, Return | None]:
    now = clock.now()
    head = store.claim(work, delivery.owner, delivery.ends, now)
    decision = decide(head, work, delivery.owner, now)
    if head is None:
        return "unknown_job", None
    run = run_of(head, work.handoff, delivery)
    match decision:
        case Work() if head.failures == 1 and head.wake == 0:
            fail(run, "never_started", f"{work.handoff} was delivered too often and never begun")
            return "never_started", None
        case Work() if head.failures <= MOST_FAILURES:
            # Not used up: it bounced off something. The job goes on with a fresh message.
            waiting = store.wait(run, now, wake=work.wake + 1, counts=False, put={})
            carry(head.job_id, (handoff_of(waiting, now, work.inputs),))
            return "bounced", None
        case Work() | GiveUp():
            fail(run, "attempts_exhausted", why_it_failed(head))
            return "attempts_exhausted", None
        case Resend():
            resend(head, work)
            return head.reason or "resent", None
        case Again():
            carry(head.job_id, (handoff_of(head, now, work.inputs),))
            return "resent", None
        case Wait(until):
            return "", Return(until - now)
        case Blocked(form):
            tell(head, form)
            return "blocked", None
        case Drop():
            return "outdated", None
        case Refuse(reason):
            return reason, None
    raise AssertionError(decision)


def _bury_range(work: RangeWork) -> str:
    left = set(parts.uncounted(work))
    head = store.head(work.job_id)
    if head is None:
        return "unknown_job"
    if head.v > VERSION:
        return "unknown_version"
    if not parts_wanted(head, work):
        return "outdated"
    for message in part_messages(work):
        if message.index in left:
            end_part(message, "never_started", "its range was never handed out")
    return "attempts_exhausted"


def _bury_part(work: PartWork, delivery: Delivery) -> tuple[str, Return | None]:
    now = clock.now()
    head, standing, decision = claim_part(work, delivery, now)
    if head is None:
        return "unknown_job", None
    match decision:
        case Work() if standing.failures == 1 and standing.wake == 0:
            end_part(work, "never_started", "delivered too often and never begun")
            return "never_started", None
        case Work() if standing.failures <= MOST_FAILURES:
            # Not used up: it bounced off something. The part goes on with a fresh message.
            parts.wait(work, delivery.owner, now, counts=False, put={})
            carry(work.job_id, (part_again(work, work.wake + 1, now, now),))
            return "bounced", None
        case Work() | GiveUp():
            end_part(work, "attempts_exhausted", f"{standing.failures - 1} tries came to nothing")
            return "attempts_exhausted", None
        case Resend():
            count_part(work, ok=standing.done)
            return standing.reason or "resent", None
        case Again():
            carry(work.job_id, (part_again(work, standing.wake, standing.not_before, now),))
            return "resent", None
        case Wait(until):
            return "", Return(until - now)
        case Blocked(form):
            tell(head, form)
            return "blocked", None
        case Drop():
            return "outdated", None
        case Refuse(reason):
            return reason, None
    raise AssertionError(decision)


# --- sweep ---------------------------------------------------------------------------------------------


def sweep() -> int:
    """Looks at every job and form that is overdue. Returns how many it pushed or ended. Harmless when run twice at
    once.

    Raises:
        Exception: what the last look came to that failed. It kept none of the others from being looked at.
    """
    pushed, fault = 0, None
    # Asked once of each queue, before the pushes of this run are on it.
    backlog = cache(queues.backlog)
    for job_id, form_id in store.due(clock.now()):
        try:
            pushed += _look_at_form(job_id, form_id) if form_id else _look_at(job_id, backlog)
        except Exception as error:  # noqa: BLE001 - raised when the others have been looked at
            trace.failure("a job could not be looked at", job_id=job_id, form=form_id)
            fault = error
    if fault is not None:
        raise fault
    return pushed


def forget() -> int:
    """Cuts down the heads of jobs that have outlived all else of them. Returns how many. Harmless when run twice."""
    now = clock.now()
    return sum(retention.cut(job_id, now) for job_id in retention.outlived(now))


def _look_at(job_id: str, backlog: Callable[[str], int]) -> bool:
    now = clock.now()
    head = store.head(job_id)
    if head is None or head.due is None or head.due > now:
        return False
    if head.v > VERSION:
        return False  # newer code wrote it, and will look at it
    look = head.look * 2
    busy_until = max(head.lease, head.not_before, now)
    due = busy_until + look
    if now < head.deadline and not head.status.ended:
        # Looks grow apart, and the deadline falls between two of them.
        due = min(due, head.deadline)
    if not store.look_again(head, due, look):
        return False
    if head.status.ended:
        _tell_and_rest(head)  # whoever ended it died before it could say so
        return True
    if now >= head.deadline:
        detail = f"not done {now - head.created:.0f} s after it was asked for; it was {head.stage}"
        ended = store.end(job_id, Status.FAILED, now, reason="deadline", detail=detail)
        if ended is not None:
            _tell_and_rest(ended)
        _tell_stuck(head)
        return True
    if head.status is not Status.ACTIVE or busy_until > now:
        return False
    functions = (head.next, head.over if head.parts else None)
    if any(backlog(function) for function in functions if function):
        return False  # the message is in there somewhere, and another would only add to it
    move_on(head, now)
    trace.info("pushed a job that stood still", job_id=job_id, stage=head.stage, next=head.next)
    if head.look > FIRST_LOOK and head.moved <= head.due - head.look and not _asks(job_id):
        # It did not move after the look before either: a push is not what it lacks.
        _tell_stuck(head)
    return True


def _asks(job_id: str) -> bool:
    """Whether a part of a job waits for a person: then it may stand still for as long as that takes."""
    return any(form.state is State.OPEN for form in forms.of(job_id))


def _look_at_form(job_id: str, form_id: str) -> bool:
    """Closes a form that nobody answered, and sees to what follows from one that is closed."""
    now = clock.now()
    form = forms.get(job_id, form_id)
    if form is None or form.due is None or form.due > now or form.v > asked.VERSION:
        return False
    if not forms.look_again(form, now + FIRST_LOOK):
        return False
    if form.state is State.OPEN:
        form = forms.expire(form, now)
    head = store.head(job_id)
    if head is None or head.v > VERSION:
        return False
    carry(job_id, of_form(form, head))
    if form.state is State.ANSWERED:
        go_on(form)
    elif not head.status.ended and not _give_up(head, form, now):
        return False  # its worker has not put the work aside yet, and will not find it answered
    forms.rest(form)
    return True


def _give_up(head: Head, form: Asked, now: float) -> bool:
    """Fails the work that nobody answered for. False if it does not wait for the form."""
    detail = f"nobody answered {form.id} by {form.deadline:.0f}: {form.question}"
    if form.work is not None:
        waiting = parts.read(form.work).form == form.id
        if waiting:
            end_part(
                form.work.model_copy(update={"generation": head.generation}),
                "nobody_answered",
                detail,
            )
        return waiting
    if (head.status, head.form) != (Status.BLOCKED, form.id):
        return False
    ended = store.end(head.job_id, Status.FAILED, now, reason="nobody_answered", detail=detail)
    if ended is not None:
        _tell_and_rest(ended)
    return True


def _tell_and_rest(ended: Head) -> None:
    resend(ended)
    store.rest(ended)


def _tell_stuck(head: Head) -> None:
    """An alarm watches this count: one lost message does not set it off."""
    trace.info("a job is stuck", job_id=head.job_id, stage=head.stage, next=head.next)
    trace.count("StuckJobs")


# --- a person's ----------------------------------------------------------------------------------------


def reopen(job_id: str) -> Head | None:
    """Opens a failed job where it failed, and moves it on. None if it has not failed.

    If it waited for parts, those that failed are worked again, and those that are done are not.

    Raises:
        UnknownVersionError: newer code wrote its head.
    """
    now = clock.now()
    head = known(store.head(job_id))
    if head is None or head.status is not Status.FAILED or head.expired is not None:
        return None
    resend(head)  # that it failed is told before it has not
    if head.parts:
        parts.reopen(job_id, (head.handoff or "").split(":")[0], head.parts, now)
    opened = store.reopen(job_id, now)
    if opened is not None:
        move_on(opened, now)
    return opened


def cancel(job_id: str, why: str) -> Head | None:
    """Cancels a job that has not ended: its next claim is refused. Returns the head as it then stands.

    Raises:
        UnknownVersionError: newer code wrote its head.
    """
    now = clock.now()
    known(store.head(job_id))
    head = store.end(job_id, Status.CANCELLED, now, reason="cancelled", detail=why)
    if head is not None and head.status is Status.CANCELLED and head.due is not None:
        _tell_and_rest(head)  # one at rest has said all, and what shows that may have expired
    return head


def redrive(record_id: str) -> str:
    """Gives a dead message another try: reopens its failed job, or puts its body back on its queue.

    Returns:
        What was done, as a word: `reopened` or `sent`.

    Raises:
        LookupError: there is no such record.
    """
    record = dead.find(record_id)
    if record is None:
        raise LookupError(f"there is no dead record {record_id}")
    if record.get("job_id") and reopen(record["job_id"]) is not None:
        done = "reopened"
    else:
        queues.resend_body(record["function"], record["body"], record["tenant"], record["origin"])
        done = "sent"
    dead.settle(record_id, clock.now())
    return done
