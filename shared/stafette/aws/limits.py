"""The one item of a model that all workers share: its slots, its minute, and when it may be asked again.

A call takes a slot in one write and leaves it in one. A holder that died frees its slot by the clock.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from boto3.dynamodb.conditions import Attr, ConditionBase

from stafette.aws import clients, keys, table
from stafette.aws.store import expires
from stafette.aws.table import ConditionFailedError, Item, Path
from stafette.core.limit import (
    MINUTE,
    MOST_WAITING,
    PAUSE,
    Admit,
    Later,
    Limits,
    Who,
    admit,
    parse,
    pause_after_overload,
)

# Tries at a slot that others were faster at, each with what they left.
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Taken:
    """A slot that has to be left."""

    key: keys.Key
    slot: str
    holder: str
    tokens: int
    minute: int
    overloads: int


def take(
    model: str,
    holder: str,
    who: Who,
    tokens: int,
    limits: Limits,
    until: float,
    now: float,
    chance: float,
) -> Taken | Later:
    """Takes a slot of a model, if there is one for this call.

    Args:
        holder: a token of who takes it, unique to the call.
        tokens: the most that the call may be.
        until: when the holder must be over.
        chance: in [0, 1).
    """
    key = keys.limit(model)
    item = table.get(key)
    for _ in range(_TRIES):
        match admit(parse(item), limits, who, tokens, now, chance):
            case Later() as later:
                _full(clients.dynamodb())[model] = now + later.seconds
                if later.queued:
                    _wait(key, item, who, now)
                return later
            case Admit(slot):
                try:
                    return _take(key, f"s{slot}", holder, who, tokens, limits, until, now, item)
                except ConditionFailedError as lost:
                    item = lost.old
                    if ((item or {}).get(f"s{slot}") or {}).get("o") == holder:
                        known = parse(item)
                        return Taken(
                            key, f"s{slot}", holder, tokens, known.minute, known.overloads
                        )  # ours: the answer was lost
    return Later(PAUSE * (1 + chance) / 2, "model_full")


def look(model: str, who: Who, limits: Limits, now: float, chance: float) -> Later | None:
    """Whether a call has to come later, without taking a slot for it. A model that has not turned this process away is
    not looked at: None."""
    full = _full(clients.dynamodb())
    if full.get(model, 0.0) <= now:
        return None
    key = keys.limit(model)
    item = table.get(key)
    found = admit(parse(item), limits, who, 0, now, chance)
    if not isinstance(found, Later):
        full.pop(model, None)  # another thread may have
        return None
    full[model] = now + found.seconds
    if found.queued:
        _wait(key, item, who, now)
    return found


@lru_cache(maxsize=1)
def _full(_client: object) -> dict[str, float]:
    """Until when models have turned this process away: known as long as its client."""
    return {}


def _take(
    key: keys.Key,
    slot: str,
    holder: str,
    who: Who,
    tokens: int,
    limits: Limits,
    until: float,
    now: float,
    item: Item | None,
) -> Taken:
    minute = int(now // MINUTE)
    known, same = parse(item), (item or {}).get("minute") == minute
    sets: dict[Path, Any] = {slot: _holder(holder, who, until), "expires": expires()}
    adds: dict[Path, Any] = {}
    if same:
        adds = {"requests": 1, "tokens": tokens}
    else:
        sets |= {"minute": minute, "requests": 1, "tokens": tokens}
    gone = [
        name
        for name, value in (item or {}).items()
        if name.startswith("w_") and (value["u"] <= now or name == _waiting(who))
    ]
    table.update(
        key,
        sets=sets,
        adds=adds,
        removes=tuple(gone),
        when=(Attr(slot).not_exists() | Attr(f"{slot}.u").lte(now))  # nobody holds it
        & (Attr("not_before").not_exists() | Attr("not_before").lte(now))  # the model may be asked
        & _minute(minute, known.requests, known.tokens, limits, tokens, same=same),
    )
    return Taken(key, slot, holder, tokens, minute, known.overloads)


def _minute(
    minute: int, requests: int, counted: int, limits: Limits, tokens: int, *, same: bool
) -> ConditionBase:
    """The minute is as it was read, and still has room."""
    if not same:
        return Attr("minute").not_exists() | Attr("minute").lt(minute)
    room: ConditionBase = Attr("minute").eq(minute)
    if limits.requests:
        room = room & Attr("requests").lt(limits.requests)
    if limits.tokens:
        room = room & Attr("tokens").lte(max(limits.tokens - tokens, counted))
    return room


def leave(
    taken: Taken,
    used: int,
    now: float,
    *,
    answered: bool,
    wait: float | None = None,
    overloaded: bool = False,
) -> None:
    """Leaves a slot, and says what the model said.

    Args:
        used: the tokens that the call was.
        answered: the model answered: it is not overloaded.
        wait: the seconds that it asked to stay away for.
        overloaded: it had too much to do.
    """
    sets: dict[Path, Any] = {}
    adds: dict[Path, Any] = {}
    if int(now // MINUTE) == taken.minute:
        adds["tokens"] = used - taken.tokens
    if overloaded:
        adds["overloads"] = 1
        wait = pause_after_overload(taken.overloads + 1, wait or 0.0)
    elif answered and taken.overloads:
        sets["overloads"] = 0
    if wait is not None:
        sets["not_before"] = now + wait
    with suppress(ConditionFailedError):  # taken for dead: somebody else has the slot
        table.update(
            taken.key,
            sets=sets,
            adds=adds,
            removes=(taken.slot,),
            when=Attr(f"{taken.slot}.o").eq(taken.holder),
        )


def _wait(key: keys.Key, item: Item | None, who: Who, now: float) -> None:
    """Remembers who was turned away, so that those who hold slots leave a share to them."""
    waiting = {n: v for n, v in (item or {}).items() if n.startswith("w_") and v["u"] > now}
    if _waiting(who) in waiting or len(waiting) >= MOST_WAITING:
        return
    dead = tuple(n for n in (item or {}) if n.startswith("w_") and n not in waiting)
    table.update(
        key,
        sets={_waiting(who): _holder(None, who, now + 3 * PAUSE)},
        removes=tuple(name for name in dead if name != _waiting(who)),
    )


def _waiting(who: Who) -> str:
    return f"w_{who.job}"


def _holder(holder: str | None, who: Who, until: float) -> dict[str, Any]:
    named = {"t": who.tenant, "j": who.job, "u": round(until, 3)}
    return named if holder is None else {**named, "o": holder}
