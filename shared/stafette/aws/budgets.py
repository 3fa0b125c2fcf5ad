"""Budgets in the table: one item for a job, one for a tenant and a month. One write reserves, one settles.

`micro` and `tokens` of an item are what is booked: spent or reserved. Each reservation is an attribute of its own,
`h_<holder>`; it is there to tell what is only reserved from what is spent, and to be settled once.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from boto3.dynamodb.conditions import Attr, ConditionBase

from stafette.aws import keys, table
from stafette.aws.store import expires
from stafette.aws.table import ConditionFailedError, Item, Path
from stafette.core.budget import UNITS, Amount, Exhausted, Held, OthersHold, no_room

# Tries at a write that others were faster than, each with what they left.
_TRIES = 5

Raise = Callable[[Amount], Amount]


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation that has to be settled."""

    key: keys.Key
    holder: str
    amount: Amount
    dead: tuple[str, ...]


def reserve(
    key: keys.Key,
    holder: str,
    need: Amount,
    cap: Amount,
    until: float,
    now: float,
    raised: Raise,
) -> Reserved | OthersHold | Exhausted:
    """Reserves an amount, if what is booked and the amount fit the cap.

    Args:
        holder: a token of who reserves, unique to the call.
        cap: as configured; one that was raised stands in the item.
        until: when the holder must be over.
        raised: the cap that people made of a cap, itself if nobody did.
    """
    given, lost = raised(cap), None
    for _ in range(_TRIES):
        sets: dict[Path, Any] = {
            f"h_{holder}": [need.micro, need.tokens, until],
            "expires": expires(),
        }
        if given != cap:
            sets |= {"cap_micro": given.micro, "cap_tokens": given.tokens}
        parts = (Attr(f"h_{holder}").not_exists(), _not_lower(given), *_fits(need, given))
        when = reduce(and_, parts)
        try:
            item = table.update(
                key, sets=sets, adds={"micro": need.micro, "tokens": need.tokens}, when=when
            )
        except ConditionFailedError as failed:
            old = failed.old or {}
            if f"h_{holder}" in old:
                return Reserved(key, holder, need, ())  # ours: the answer was lost
            stored = Amount(old.get("cap_micro", 0), old.get("cap_tokens", 0))
            higher = raised(_higher(given, stored))
            if higher != given:
                given = higher
                continue
            lost = no_room(_booked(old), _held(old).values(), need, given, now)
            if lost is not None:
                return lost
        else:
            dead = [name for name, held in _held(item).items() if held.until <= now]
            return Reserved(key, holder, need, tuple(dead))
    return OthersHold(now)


def settle(reserved: Reserved, used: Amount) -> None:
    """Books what was used in the place of what was reserved; reservations of the dead stay booked in full."""
    name = f"h_{reserved.holder}"
    # Somebody who took this holder for dead has settled it in full, or the answer to a first try was lost.
    with suppress(ConditionFailedError):
        table.update(
            reserved.key,
            adds={
                "micro": used.micro - reserved.amount.micro,
                "tokens": used.tokens - reserved.amount.tokens,
            },
            removes=(name, *reserved.dead),
            when=Attr(name).exists(),
        )


def _fits(need: Amount, cap: Amount) -> list[ConditionBase]:
    """What is booked and this amount are within the cap, where there is one."""
    fits: list[ConditionBase] = []
    for unit in UNITS:
        if most := getattr(cap, unit):
            room = most - getattr(need, unit)
            booked = Attr(unit).lte(room)
            # Nothing is booked yet. An amount above the whole cap fits not even then.
            fits.append(booked | Attr(unit).not_exists() if room >= 0 else booked)
    return fits


def _not_lower(cap: Amount) -> ConditionBase:
    """Nobody has raised the cap further."""
    lower: ConditionBase = Attr("cap_micro").not_exists()
    return lower | (Attr("cap_micro").lte(cap.micro) & Attr("cap_tokens").lte(cap.tokens))


def _higher(one: Amount, other: Amount) -> Amount:
    """The larger of two caps. No cap (0) stays none."""
    return Amount(*(_larger(getattr(one, unit), getattr(other, unit)) for unit in UNITS))


def _larger(one: int, other: int) -> int:
    return max(one, other) if one else 0


def _booked(item: Item) -> Amount:
    return Amount(item.get("micro", 0), item.get("tokens", 0))


def _held(item: Item) -> dict[str, Held]:
    return {
        name: Held(micro, tokens, float(until))
        for name, (micro, tokens, until) in _reservations(item)
    }


def _reservations(item: Item) -> list[tuple[str, tuple[int, int, Any]]]:
    return [(name, value) for name, value in item.items() if name.startswith("h_")]
