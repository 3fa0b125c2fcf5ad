"""Whether a budget has room for a model call: arithmetic in whole micro-dollars and tokens. It stores nothing.

What a budget has booked is what was spent and what is reserved, in one number. A reservation whose holder died stays
booked in full: the call may have been billed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["micro", "tokens"]
UNITS: tuple[Unit, ...] = ("micro", "tokens")


@dataclass(frozen=True, slots=True)
class Amount:
    """Micro-dollars and tokens."""

    micro: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation, and when its holder must be over (seconds since the epoch)."""

    micro: int
    tokens: int
    until: float


@dataclass(frozen=True, slots=True)
class OthersHold:
    """There is room once the reservations of others are settled, the first of them by then."""

    until: float


@dataclass(frozen=True, slots=True)
class Exhausted:
    """There is no room, and waiting makes none. `spent` counts what may have been billed."""

    unit: Unit
    cap: int
    spent: int
    need: int


def no_room(
    booked: Amount, held: Iterable[Held], need: Amount, cap: Amount, now: float
) -> OthersHold | Exhausted | None:
    """Why a budget has no room for `need`; None: it has. A cap of 0 is none."""
    live = [each for each in held if each.until > now]
    waits = False
    for unit in UNITS:
        most, wanted, full = getattr(cap, unit), getattr(need, unit), getattr(booked, unit)
        if not most or full + wanted <= most:
            continue
        spent = full - sum(getattr(each, unit) for each in live)
        if spent + wanted > most:
            return Exhausted(unit, most, spent, wanted)
        waits = True
    return OthersHold(min(each.until for each in live)) if waits else None
