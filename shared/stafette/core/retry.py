"""What an error means for the work: a decision, not a loop."""

from collections.abc import Container
from dataclasses import dataclass

from stafette.core.errors import (
    BlockedError,
    PermanentError,
    StafetteError,
    ThrottledError,
    TransientError,
)
from stafette.core.form import Form
from stafette.core.job import MOST_FAILURES

# A wait that somebody asks for beyond this is not worth keeping the job open for.
LONGEST_WAIT = 6 * 3600.0
_BASE, _CAP = 2.0, 600.0


@dataclass(frozen=True, slots=True)
class Later:
    """Again after so many seconds; `counts` says whether it was a failure."""

    seconds: float
    counts: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """Never: the job or part fails with this reason."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Bug:
    """An error of our own: the message comes back, and is buried with the traceback in the end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """When a person has answered."""

    form: Form


Fate = Later | Fail | Bug | Ask


def fate(
    error: Exception, failures: int, chance: float, answered: Container[str] = frozenset()
) -> Fate:
    """What becomes of work that raised `error`.

    Args:
        failures: tries that came to nothing, this one included.
        chance: a number in [0, 1) for jitter.
        answered: names of the forms that this work was given the answers of.
    """
    detail = str(error)[:300]
    match error:
        case BlockedError(form=form) if form.name in answered:
            # A person who was asked once is not asked for ever.
            return Fail("asked_again", f"{form.name} was answered, and is asked again: {detail}")
        case BlockedError(form=form):
            return Ask(form)
        case PermanentError():
            return Fail(error.reason, detail)
        case ThrottledError() if error.wait > LONGEST_WAIT:
            return Fail("rate_limited", f"asked to wait {error.wait:.0f} s: {detail}")
        case ThrottledError():
            # A little later than asked: whoever was turned away together must not come back together.
            return Later(error.wait + _BASE * chance, counts=False)
        case TransientError() if failures >= MOST_FAILURES:
            return Fail(
                "attempts_exhausted", f"{failures} tries; the last: {error.reason}: {detail}"
            )
        case TransientError():
            return Later(backoff(failures, chance), counts=True)
        case StafetteError() | _:
            return Bug()


def backoff(failures: int, chance: float) -> float:
    """Seconds before the next try: exponential with full jitter in its upper half, at most ten minutes."""
    ceiling = min(_CAP, _BASE * 2 ** min(failures, 16))
    return float(ceiling * (0.5 + chance / 2))
