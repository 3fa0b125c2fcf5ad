"""What stands around one request to a model: the job is active, the model has room, the budgets have room.

All of it is written before the request, in this order, and settled after it; what the death of a worker leaves behind
ends by the clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from typing import Any

from stafette import clock, settings, trace
from stafette.agent import definition, models
from stafette.aws import budgets, keys, limits, store
from stafette.aws.budgets import Reserved
from stafette.aws.limits import Taken
from stafette.core.budget import Amount, Exhausted, OthersHold
from stafette.core.errors import (
    BlockedError,
    PermanentError,
    StafetteError,
    ThrottledError,
    TransientError,
)
from stafette.core.form import Form
from stafette.core.job import Head, Status
from stafette.core.limit import Later, Limits, Ready, Who
from stafette.core.run import Run

# Seconds, at most, until the reservations of others are looked at again, and until a blocked job is.
_OTHERS, _BLOCKED = 10.0, 60.0
_MILLION = 1_000_000


class NotActiveError(TransientError):
    """The job has ended meanwhile: nothing new of it begins."""

    reason = "job_not_active"


@dataclass(frozen=True, slots=True)
class Entered:
    """What a call holds, and has to give back."""

    slot: Taken
    reserved: tuple[Reserved, ...]


def enter(run: Run, model: str, n: int, need: Amount) -> Entered:
    """Asks all guards for a call that may use so much.

    Args:
        n: the number of the call within its attempt.

    Raises:
        NotActiveError: the job has ended.
        ThrottledError: the model has no room now, or the budget has none because of the reservations of others.
        BlockedError: a budget is used up, and a person may raise it.
        PermanentError: `budget_exhausted`: a person did not.
    """
    head = _active(run)
    holder = _short(run.job_id, run.handoff, str(run.attempt), str(n))
    slot = _slot(run, model, holder, need.tokens)
    reserved: list[Reserved] = []
    try:
        for budget in _budgets(run, head):
            reserved.append(_reserve(run, budget, holder, need))
    except StafetteError:
        leave(Entered(slot, tuple(reserved)), Amount(), None, sent=False)
        raise
    return Entered(slot, tuple(reserved))


def leave(
    entered: Entered, used: Amount | None, error: Exception | None, *, sent: bool = True
) -> None:
    """Settles what a call held.

    A guard that cannot be settled now, because the table is busy, is settled by the clock: in full.

    Args:
        used: None when nobody knows: then all that was reserved.
        error: what came of the call, if no answer.
        sent: whether the model was asked at all: else nothing is known of how it is.
    """
    for reserved in entered.reserved:
        _quietly(partial(budgets.settle, reserved, used or reserved.amount))
    overloaded = isinstance(error, ThrottledError) and error.reason == "overloaded"
    _quietly(
        lambda: limits.leave(
            entered.slot,
            used.tokens if used else entered.slot.tokens,
            clock.now(),
            answered=sent and not isinstance(error, TransientError),
            wait=error.wait if isinstance(error, ThrottledError) else None,
            overloaded=overloaded,
        )
    )


def _quietly(write: Callable[[], None]) -> None:
    try:
        write()
    except StafetteError as error:
        trace.info("a guard of a model call is left to the clock", reason=error.reason)


def _active(run: Run) -> Head:
    head = store.head(run.job_id)
    if head is not None and head.status is Status.BLOCKED:
        raise ThrottledError("the job waits for a person", wait=_BLOCKED, reason="job_blocked")
    if head is None or head.status is not Status.ACTIVE:
        raise NotActiveError
    return head


# --- the model ---------------------------------------------------------------------------------------------


def room(agent: str) -> Ready:
    """Asks before work is claimed whether the model of an agent may be asked now: a job that has to wait then costs a
    write and no try.

    Only a model that turned this process away a moment ago is looked at: the others cost nothing.
    """

    def ready(tenant: str, job_id: str) -> Later | None:
        try:
            model = models.name(definition.load(agent).model)
            return limits.look(model, _who(tenant, job_id), _allowed(), clock.now(), clock.chance())
        except StafetteError:
            return None  # it is asked again when the work is claimed

    return ready


def _allowed() -> Limits:
    return Limits(
        settings.model_concurrent(),
        settings.model_requests_per_minute(),
        settings.model_tokens_per_minute(),
    )


def _who(tenant: str, job_id: str) -> Who:
    return Who(_short(tenant)[:6], _short(tenant, job_id)[:6])


def _slot(run: Run, model: str, holder: str, tokens: int) -> Taken:
    who, now = _who(run.tenant, run.job_id), clock.now()
    name = models.name(model)
    slot = limits.take(name, holder, who, tokens, _allowed(), run.ends, now, clock.chance())
    if isinstance(slot, Later):
        raise ThrottledError(
            f"no call of {model} may be made now", wait=slot.seconds, reason=slot.reason
        )
    return slot


# --- budgets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Budget:
    of: str
    key: keys.Key
    cap: Amount


def _budgets(run: Run, head: Head) -> list[_Budget]:
    """The budgets that a call is paid from. A tenant without a cap is not counted."""
    micro, tokens = settings.job_budget()
    own = Amount(
        micro if head.cap_micro is None else head.cap_micro,
        tokens if head.cap_tokens is None else head.cap_tokens,
    )
    found = [_Budget("job", keys.budget(run.job_id), own)]
    tenant = Amount(*settings.tenant_budget())
    if tenant != Amount():
        month = datetime.fromtimestamp(clock.now(), UTC).strftime("%Y-%m")
        found.append(_Budget("tenant", keys.tenant_budget(run.tenant, month), tenant))
    return found


def _reserve(run: Run, budget: _Budget, holder: str, need: Amount) -> Reserved:
    now = clock.now()

    def raised(cap: Amount) -> Amount:
        return _raised(run, budget, cap)

    outcome = budgets.reserve(budget.key, holder, need, budget.cap, run.ends, now, raised)
    match outcome:
        case OthersHold(until):
            wait = min(max(until - now, 1.0), _OTHERS * (1 + clock.chance()) / 2)
            raise ThrottledError(
                f"the rest of the {budget.of}'s budget is reserved", wait=wait, reason="budget_held"
            )
        case Exhausted():
            raise BlockedError(_form(run, budget, outcome))
    return outcome


def _form_name(budget: _Budget, unit: str, cap: int) -> str:
    """Each cap is asked for once, by all work of the job: a need that comes after it was raised has another name."""
    month = budget.key[1].removeprefix("BUDGET#").replace("-", "_") if budget.of == "tenant" else ""
    return "_".join(filter(None, (budget.of, "budget", month, unit, str(cap))))


def _form(run: Run, budget: _Budget, why: Exhausted) -> Form:
    whose = f"tenant {run.tenant}" if budget.of == "tenant" else "this job"
    money = why.unit == "micro"
    unit = "US dollars" if money else "tokens"
    name, kind = ("cap_usd", "number") if money else ("cap_tokens", "integer")

    def shown(amount: int) -> float | int:
        return amount / _MILLION if money else amount

    return Form(
        name=_form_name(budget, why.unit, why.cap),
        question=f"The budget of {whose} is used up. What is its new cap, in {unit}? "
        "One that is not higher ends the job.",
        schema={
            "type": "object",
            "properties": {name: {"type": kind, "minimum": 0}},
            "required": [name],
            "additionalProperties": False,
        },
        facts={
            "unit": unit,
            "cap": shown(why.cap),
            "spent": shown(why.spent),
            "needed for the next call, at most": shown(why.need),
        },
        scope="job",
    )


def _raised(run: Run, budget: _Budget, cap: Amount) -> Amount:
    """The cap that people made of a cap, one answer after the other.

    Raises:
        PermanentError: `budget_exhausted`: the answer to the last question is no higher cap.
    """
    micro = _follow(run, budget, "micro", cap.micro)
    tokens = _follow(run, budget, "tokens", cap.tokens)
    return Amount(micro, tokens)


def _follow(run: Run, budget: _Budget, unit: str, cap: int) -> int:
    while (given := run.answers.get(_form_name(budget, unit, cap))) is not None:
        new = _cap_of(given, unit)
        if new <= cap:
            raise PermanentError(
                f"the budget of the {budget.of} is used up", reason="budget_exhausted"
            )
        cap = new
    return cap


def _cap_of(given: Any, unit: str) -> int:
    if unit == "tokens":
        return int(given["cap_tokens"])
    return int(Decimal(str(given["cap_usd"])) * _MILLION)


def _short(*parts: str) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:12]
