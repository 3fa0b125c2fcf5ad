"""The loop of a stage: claim, decide, work, store, advance, carry on. What a stage does is handed in."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from pydantic import BaseModel, ValidationError

from stafette import clock, trace
from stafette.aws import forms, queues, store
from stafette.aws.patience import patiently
from stafette.core import retry
from stafette.core.decide import Again, Blocked, Drop, GiveUp, Refuse, Resend, Wait, Work, decide
from stafette.core.errors import PermanentError, RefusedError
from stafette.core.follow_ups import follow_ups, handoff_of
from stafette.core.job import Head, Move, Status
from stafette.core.limit import Ready
from stafette.core.messages import Handoff, Inputs, faults
from stafette.core.run import Run
from stafette.relay.batch import Delivery, Handler, Return, batch_handler
from stafette.relay.carry import carry
from stafette.relay.forms import block, tell


@dataclass(frozen=True, slots=True)
class To:
    """Where a job goes next: a function, and with routing the flow it belongs to from now on, and the agent in it."""

    function: str
    flow: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Routed:
    """The result of a stage that decides where its job goes."""

    value: BaseModel
    to: To


Then = str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of work that a queue brings: its handoff id, the stage of the jobs that it takes, what makes a move of
    the results so far, and what is asked before it is claimed."""

    handoff: str
    takes: str
    work: Callable[[Inputs, Run, Head], Move]
    ready: Ready | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A function that takes jobs from one stage to another. `handler` is what Lambda calls."""

    name: str
    step: Step

    @property
    def handler(self) -> Handler:
        """The Lambda handler."""
        return batch_handler(self.name, lambda delivery: take(self.name, (self.step,), delivery))


def stage(
    *,
    takes: str,
    gives: str,
    then: Then,
    notice: Callable[[Any], dict[str, str] | None] | None = None,
    ready: Ready | None = None,
) -> Callable[[Callable[..., BaseModel | Routed]], Stage]:
    """Makes a stage of a function from earlier results to a result.

    The function's parameters are found by their types: `Run`, and the pydantic models that earlier stages
    returned. What it returns is the stage's result, or with `Routed` that and where the job goes.

    Args:
        takes: the stage of the jobs that it takes.
        gives: the stage that is completed by it.
        then: the function that goes on; None ends the job, unless the result is a `Routed`.
        notice: what the world is to be told of this result, as attributes of a side message; None says nothing.
        ready: asked before a job is claimed; a job that has to come back later waits without a try.
    """

    def decorate(function: Callable[..., BaseModel | Routed]) -> Stage:
        wanted = parameters(function)

        def work(inputs: Inputs, run: Run, head: Head) -> Move:
            return move(function(**arguments(wanted, inputs, run)), gives, then, notice)

        name = function.__name__
        return Stage(name, Step(name, takes, work, ready))

    return decorate


def move(
    result: BaseModel | Routed,
    gives: str,
    then: Then,
    notice: Callable[[Any], dict[str, str] | None] | None = None,
) -> Move:
    """What a result makes of its job."""
    to = To(then) if then else None
    if isinstance(result, Routed):
        to, result = result.to, result.value
    return Move(
        stage=gives,
        model=type(result).__name__,
        value=result.model_dump(mode="json"),
        next=to.function if to else None,
        handoff=to.function if to else None,
        flow=to.flow if to else None,
        agent=to.agent if to else None,
        notice=notice(result) if notice else None,
    )


def parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of a stage's function and their types."""
    hints = get_type_hints(function)
    missing = [name for name in inspect.signature(function).parameters if name not in hints]
    if missing:
        raise TypeError(f"{function.__name__}: parameters without a type: {', '.join(missing)}")
    return {name: hint for name, hint in hints.items() if name != "return"}


def arguments(wanted: Mapping[str, Any], inputs: Inputs, run: Run) -> dict[str, Any]:
    """Values for parameters, from the results so far.

    Raises:
        PermanentError: no stage before has given such a value (`missing_input`), or it does not fit (`bad_input`).
    """
    return {name: run if kind is Run else value_of(kind, inputs) for name, kind in wanted.items()}


def value_of(model: type[BaseModel], inputs: Inputs) -> BaseModel:
    """The value that an earlier stage gave, as the model that this stage knows it by."""
    if model.__name__ not in inputs:
        raise PermanentError(f"no earlier stage gave {model.__name__}", reason="missing_input")
    try:
        return model.model_validate(inputs[model.__name__])
    except ValidationError as error:
        raise PermanentError(f"{model.__name__}: {faults(error)}", reason="bad_input") from error


# --- gather, decide, apply ---------------------------------------------------------------------------


def take(function: str, steps: tuple[Step, ...], delivery: Delivery) -> Return | None:
    """Takes one message from the queue of a function that knows these steps."""
    message = queues.from_body(delivery.body)
    if isinstance(message, Handoff):
        for step in steps:
            if (step.handoff, step.takes) == (message.handoff, message.stage):
                return take_handoff(step, message, delivery)
    raise RefusedError(f"{function} does not take this message", reason="wrong_queue")


def take_handoff(step: Step, message: Handoff, delivery: Delivery) -> Return | None:
    """Takes one handoff: the claim reads the job, the core decides, and the rest carries that out."""
    now = clock.now()
    later = step.ready(message.tenant, message.job_id) if step.ready else None
    waiting = store.put_off(message, now + later.seconds, now, later.reason) if later else None
    head = waiting or store.claim(message, delivery.owner, delivery.ends, now)
    decision = decide(head, message, delivery.owner, now)
    if head is None:
        raise RefusedError(f"there is no job {message.job_id}", reason="unknown_job")
    match decision:
        case Work():
            _work(step, message, head, run_of(head, message.handoff, delivery))
        case GiveUp(reason):
            fail(run_of(head, message.handoff, delivery), reason, why_it_failed(head))
        case Resend():
            resend(head, message)
        case Again():
            carry(head.job_id, (handoff_of(head, now, message.inputs),))
        case Wait(until):
            return Return(until - now)
        case Blocked(form):
            tell(head, form)
        case Drop():
            trace.info("dropped an old message", job_id=head.job_id, handoff=message.handoff)
        case Refuse(reason):
            raise RefusedError(f"{message.handoff} is not for this job now", reason=reason)
    return None


def run_of(head: Head, handoff: str, delivery: Delivery) -> Run:
    """What the worker that holds a job knows of it."""
    return Run(
        job_id=head.job_id,
        trace_id=head.trace_id,
        tenant=head.tenant,
        flow=head.flow,
        handoff=handoff,
        attempt=head.attempt,
        owner=delivery.owner,
        ends=delivery.ends,
        agent=head.agent,
    )


def _work(step: Step, message: Handoff, head: Head, run: Run) -> None:
    began = clock.now()
    try:
        if head.asked == run.handoff:
            run = replace(run, answers=forms.answers(run.job_id, run.handoff))
        inputs = store.results_so_far(head) if message.inputs is None else message.inputs
        moved = step.work(inputs, run, head)
        ended = clock.now()
        patiently(run.ends, lambda: store.put_result(run, moved, began, ended, head))
    except Exception as error:
        if not _failed(error, head, message, run, began):
            raise
        return
    head = patiently(run.ends, lambda: store.advance(run, moved, ended))
    inputs = inputs if moved.over is not None else {**inputs, moved.model: moved.value}
    carry(run.job_id, follow_ups(head, clock.now(), inputs, moved.parts, moved.notice))


def _failed(error: Exception, head: Head, message: Handoff, run: Run, began: float) -> bool:
    """Does what an error means for the job. False: it is a bug, and the message is to come back."""
    match retry.fate(error, head.failures, clock.chance(), run.answers):
        case retry.Fail(reason, detail):
            fail(run, reason, detail, began)
        case retry.Later(seconds, counts):
            now, reason = clock.now(), str(getattr(error, "reason", "later"))
            put = head.put_aside(reason, now)
            waiting = store.wait(run, now + seconds, wake=message.wake + 1, counts=counts, put=put)
            trace.info(
                "a job waits",
                job_id=run.job_id,
                handoff=run.handoff,
                seconds=round(seconds),
                reason=reason,
            )
            carry(run.job_id, (handoff_of(waiting, clock.now(), message.inputs),))
        case retry.Ask(form):
            block(form, run, head, message.wake)
        case retry.Bug():
            told = "".join(traceback.format_exception(error))
            store.put_failure(run, type(error).__name__, told, began, clock.now())
            store.let_go(run)
            return False
    return True


def fail(run: Run, reason: str, detail: str, began: float | None = None) -> None:
    """Ends a job that this worker holds as failed, and says so. `began` is when the work began that failed."""
    ended = store.end(
        run.job_id,
        Status.FAILED,
        clock.now(),
        reason=reason,
        detail=detail,
        held=run,
        began=began,
    )
    trace.info("a job failed", job_id=run.job_id, handoff=run.handoff, reason=reason)
    if ended is not None:
        carry(run.job_id, follow_ups(ended, clock.now()))


def why_it_failed(head: Head) -> str:
    """What is known of the tries at the work that a job waits for."""
    last = store.last_failure(head.job_id, head.handoff or "")
    # The claim that gives up counts as one that may fail, but nothing is tried under it.
    tries = f"{head.failures - 1} tries at {head.handoff} came to nothing"
    return (
        f"{tries}; the last: {last[0]}: {last[1].strip()[-200:]}"
        if last
        else f"{tries}, with no word left"
    )


def resend(head: Head, message: Handoff | None = None) -> None:
    """Sends again what follows from where a job is, from the winning result that brought it there."""
    result = store.winning_result(head, head.last) if head.last in head.won else None
    inputs = message.inputs if message else None
    if inputs is not None and result is not None and not result.split:
        inputs = {**inputs, result.model: result.value}
    parts = result.value if result is not None and result.split else None
    notice = result.notice if result is not None else None
    carry(head.job_id, follow_ups(head, clock.now(), inputs, parts, notice))
