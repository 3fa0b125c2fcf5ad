"""The loops of a fan-out: a stage splits its job, ranges hand parts out, parts are worked, the last one calls the join.

Splitting and joining are stages like any other (relay/stage.py). A part has a lease and a result of its own, and no
journal entry; the join counts each part once, whatever is delivered twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from stafette import clock, trace
from stafette.aws import forms, parts, queues, store
from stafette.aws.patience import patiently
from stafette.core import retry
from stafette.core.decide import (
    Again,
    Blocked,
    Decision,
    Drop,
    GiveUp,
    Refuse,
    Resend,
    Wait,
    Work,
    decide_part,
)
from stafette.core.errors import PermanentError, RefusedError
from stafette.core.follow_ups import Send, delay_until, join_handoff, join_message, part_messages
from stafette.core.job import Head, Move, Part, Status, known
from stafette.core.joins import MOST_PARTS, Outcome, Policy, in_order, ranges
from stafette.core.limit import Ready
from stafette.core.messages import Inputs, PartWork, RangeWork, faults
from stafette.core.run import Run
from stafette.relay.batch import Delivery, Handler, Return, batch_handler
from stafette.relay.carry import carry
from stafette.relay.forms import block_part, tell
from stafette.relay.stage import Step, Then, arguments, move, parameters, take

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """How one part ended: with a value, or with a reason why not."""

    index: int
    value: T | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Joined(Generic[T]):
    """The parts of a fan-out, all ended, in order. Iterating reads them from the table, a page at a time."""

    total: int
    failed: int
    _outcomes: Callable[[], Iterator[Outcome]]
    _model: Any

    def __iter__(self) -> Iterator[Ended[T]]:
        for outcome in self._outcomes():
            value = self._model.model_validate(outcome.value) if outcome.ok else None
            yield Ended(outcome.index, value, outcome.reason)


# --- splitting and joining -----------------------------------------------------------------------------


class FanOut:
    """A stage that splits a job into parts, and its join. `handler` is what Lambda calls for both."""

    def __init__(self, name: str, split: Step) -> None:
        self.name = name
        self._steps: tuple[Step, ...] = (split,)

    def join(
        self,
        *,
        takes: str,
        gives: str,
        then: Then,
        policy: Policy,
    ) -> Callable[[Callable[..., BaseModel]], Callable[..., BaseModel]]:
        """Names the function that goes on when every part has ended: as a stage, with a `Joined` parameter.

        Args:
            takes: the waiting stage.
            gives: the stage that is completed by the join.
            then: as for a stage.
            policy: which failures it goes on over; otherwise the job fails with reason `join_policy`.
        """

        def decorate(function: Callable[..., BaseModel]) -> Callable[..., BaseModel]:
            wanted = parameters(function)
            name, kind = next((n, k) for n, k in wanted.items() if get_origin(k) is Joined)
            others = {n: k for n, k in wanted.items() if n != name}

            def work(inputs: Inputs, run: Run, head: Head) -> Move:
                joined: Joined[Any] = _joined(self.name, head, policy, get_args(kind)[0])
                return move(
                    function(**arguments(others, inputs, run), **{name: joined}), gives, then
                )

            self._steps = (*self._steps, Step(join_handoff(self.name), takes, work))
            return function

        return decorate

    @property
    def handler(self) -> Handler:
        """The Lambda handler."""
        return batch_handler(self.name, lambda delivery: take(self.name, self._steps, delivery))


def fan_out(*, takes: str, gives: str, over: str) -> Callable[[Callable[..., Any]], FanOut]:
    """Makes a splitting stage of a function from earlier results to a list of parts (pydantic models).

    Args:
        takes: the stage of the jobs that it takes.
        gives: the waiting stage, while the parts are worked.
        over: the function that works a part.
    """

    def decorate(function: Callable[..., Any]) -> FanOut:
        wanted, name = parameters(function), function.__name__

        def work(inputs: Inputs, run: Run, head: Head) -> Move:
            listed = [
                part.model_dump(mode="json") for part in function(**arguments(wanted, inputs, run))
            ]
            if len(listed) > MOST_PARTS:
                detail = f"{len(listed)} parts; {MOST_PARTS} is the most"
                raise PermanentError(detail, reason="too_many_parts")
            return Move(
                stage=gives,
                model=name,
                value=listed,
                next=name,
                handoff=join_handoff(name),
                over=over,
            )

        return FanOut(name, Step(name, takes, work))

    return decorate


def _joined(split: str, head: Head, policy: Policy, model: Any) -> Joined[Any]:
    total = head.parts or 0
    top = parts.counted(head.job_id, split, head.generation)
    if top.completed != ranges(total):
        # Nobody but a mistake sends a join before its time; it must not run over parts that are missing.
        raise PermanentError(
            f"{top.completed} of {ranges(total)} ranges are full", reason="join_early"
        )

    def outcomes() -> Iterator[Outcome]:
        return in_order(parts.outcomes(head.job_id, split, total), total)

    if not policy.holds(total, top.failed):
        failed = (f"{o.index} ({o.reason})" for o in outcomes() if not o.ok)
        shown = ", ".join(islice(failed, 10)) + (" ..." if top.failed > 10 else "")
        detail = f"{top.failed} of {total} parts failed: {shown}"
        raise PermanentError(detail, reason="join_policy")
    return Joined(total, top.failed, outcomes, model)


# --- ranges and parts ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """A function that works the parts of a fan-out. `handler` is what Lambda calls."""

    name: str
    work: Callable[[Any, Run], Any]
    ready: Ready | None = None

    @property
    def handler(self) -> Handler:
        """The Lambda handler."""
        return batch_handler(self.name, self._take)

    def _take(self, delivery: Delivery) -> Return | None:
        message = queues.from_body(delivery.body)
        if isinstance(message, RangeWork):
            hand_out(message)
            return None
        if isinstance(message, PartWork):
            return _take_part(self.work, message, delivery, self.ready)
        raise RefusedError(f"{self.name} does not take this message", reason="wrong_queue")


def part(*, ready: Ready | None = None) -> Callable[[Callable[..., BaseModel]], Parts]:
    """Makes a worker of parts of a function from one part (a pydantic model) and its `Run` to a result.

    Args:
        ready: as for a stage.
    """

    def decorate(function: Callable[..., BaseModel]) -> Parts:
        wanted = parameters(function)
        name, model = next((n, k) for n, k in wanted.items() if k is not Run)
        run_name = next((n for n, k in wanted.items() if k is Run), None)

        def work(value: Any, run: Run) -> Any:
            try:
                given = model.model_validate(value)
            except ValidationError as error:
                raise PermanentError(faults(error), reason="bad_input") from error
            known = {run_name: run} if run_name else {}
            result: BaseModel = function(**{name: given}, **known)
            return result.model_dump(mode="json")

        return Parts(function.__name__, work, ready)

    return decorate


def hand_out(work: RangeWork) -> None:
    """Sends the parts of a range. A part that the queue will never take has failed, and is counted."""
    head = known(store.head(work.job_id))
    if head is None:
        raise RefusedError(f"there is no job {work.job_id}", reason="unknown_job")
    if not parts_wanted(head, work):
        return
    messages = [Send(message) for message in part_messages(work)]
    refused = queues.send_all(messages)
    trace.count("PartsStarted", len(messages) - len(refused))
    for lost in refused:
        if isinstance(lost.send.message, PartWork):
            end_part(lost.send.message, "not_sent", lost.code)


def parts_wanted(head: Head, work: RangeWork | PartWork) -> bool:
    """Whether a job still waits for what a message of its fan-out is about."""
    return (
        head.status is Status.ACTIVE
        and head.stage == work.stage
        and head.generation == work.generation
    )


def end_part(work: PartWork, reason: str, detail: str, began: float | None = None) -> None:
    """Ends a part as failed, unless it has ended, and counts it. `began` is when the try began that ended it."""
    count_part(work, ok=parts.fail(work, reason, detail, clock.now(), began))


def _take_part(
    function: Callable[[Any, Run], Any], work: PartWork, delivery: Delivery, ready: Ready | None
) -> Return | None:
    now = clock.now()
    head, standing, decision = claim_part(work, delivery, now, ready)
    if head is None:
        raise RefusedError(f"there is no job {work.job_id}", reason="unknown_job")
    match decision:
        case Work():
            _work(function, work, head, standing, _run(head, standing, work, delivery))
        case GiveUp(reason):
            end_part(work, reason, f"{standing.failures - 1} tries came to nothing")
        case Resend():
            count_part(work, ok=standing.done)
        case Again():
            carry(work.job_id, (part_again(work, standing.wake, standing.not_before, now),))
        case Wait(until):
            return Return(until - now)
        case Blocked(form):
            tell(head, form)
        case Drop():
            trace.info("dropped an old part", job_id=work.job_id, handoff=work.handoff)
        case Refuse(reason):
            raise RefusedError(f"{work.handoff} is not for this job", reason=reason)
    return None


def claim_part(
    work: PartWork, delivery: Delivery, now: float, ready: Ready | None = None
) -> tuple[Head | None, Part, Decision]:
    """Reads the job of a part, and claims the part if the job still waits for it: what stands, and what to do."""
    head, standing = store.head(work.job_id), Part(index=work.index)
    decision = decide_part(head, None, work, delivery.owner, now)
    if isinstance(decision, Work):
        later = ready(work.tenant, work.job_id) if ready else None
        waiting = parts.put_off(work, now + later.seconds, now, later.reason) if later else None
        standing = waiting or parts.claim(work, delivery.owner, delivery.ends, now)
        decision = decide_part(head, standing, work, delivery.owner, now)
    return head, standing, decision


def part_again(work: PartWork, wake: int, until: float, now: float) -> Send:
    """The copy of a part's message that comes when its wait is over."""
    return Send(work.model_copy(update={"wake": wake}), delay_until(until, now))


def _run(head: Head, standing: Part, work: PartWork, delivery: Delivery) -> Run:
    return Run(
        job_id=head.job_id,
        trace_id=head.trace_id,
        tenant=head.tenant,
        flow=head.flow,
        handoff=work.handoff,
        attempt=standing.attempt,
        owner=delivery.owner,
        ends=delivery.ends,
        part=work.index,
        agent=head.agent,
    )


def _work(
    function: Callable[[Any, Run], Any], work: PartWork, head: Head, standing: Part, run: Run
) -> None:
    began = clock.now()
    try:
        if standing.asked:
            run = replace(run, answers=forms.answers(work.job_id, work.handoff))
        value, ended = function(work.input, run), clock.now()
        ok = patiently(run.ends, lambda: parts.finish(work, value, began, ended))
    except Exception as error:
        match retry.fate(error, standing.failures, clock.chance(), run.answers):
            case retry.Fail(reason, detail):
                end_part(work, reason, detail, began)
            case retry.Later(seconds, counts):
                now, why = clock.now(), str(getattr(error, "reason", "later"))
                put = standing.put_aside(why, now)
                parts.wait(work, run.owner, now + seconds, counts=counts, put=put)
                carry(work.job_id, (part_again(work, work.wake + 1, now + seconds, now),))
            case retry.Ask(form):
                block_part(form, run, head, work)
            case retry.Bug():
                parts.let_go(work, run)
                raise
        return
    count_part(work, ok=ok)


def count_part(work: PartWork, *, ok: bool) -> None:
    """Counts an ended part, unless it has been; whoever finds the join full sends it."""
    if parts.count(work, ok=ok):
        carry(work.job_id, (join_message(work),))
