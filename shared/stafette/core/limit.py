"""Whether one more call of a model may be made now, by what all workers together know of it. It stores nothing.

A limit is a number of calls at once, of requests and of tokens in a minute of the clock, and a time before which the
provider wants to hear nothing. After several overloads in a row the limit is one call at a time, after a pause, until
one is answered: a circuit breaker that closes by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

# Seconds after which somebody for whom there was no room asks again, half of it at least.
PAUSE = 6.0
# Overloads in a row that open the breaker, and the seconds that it then stays open, at least.
OPENS_AT = 3
OPEN = 30.0
MINUTE = 60
# Of those who wait, so many are remembered: the item stays under 1 KB.
MOST_WAITING = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model may be asked, by all workers together; 0 is no limit."""

    concurrent: int
    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Who:
    """On whose behalf a call is made: short keys of a tenant and of a job."""

    tenant: str
    job: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A call at the model: who makes it, until when at the latest."""

    who: Who
    until: float


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model.

    Attributes:
        slots: the calls that are being made, by the number of their slot; dead ones too.
        waiting: who was turned away, and until when that counts.
        minute: the minute that `requests` and `tokens` are counted in.
        not_before: seconds since the epoch.
        overloads: in a row.
    """

    slots: Mapping[int, Slot]
    waiting: tuple[Slot, ...] = ()
    minute: int = 0
    requests: int = 0
    tokens: int = 0
    not_before: float = 0
    overloads: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """The call may take this slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class Later:
    """Not now; again after so many seconds. `queued`: for want of a slot, which is to be shared fairly."""

    seconds: float
    reason: str
    queued: bool = False


# Asked before work is claimed, on behalf of a tenant and a job: whether it has to come back later.
Ready = Callable[[str, str], Later | None]


def admit(
    known: Known, limits: Limits, who: Who, tokens: int, now: float, chance: float
) -> Admit | Later:
    """Whether a call of so many tokens may be made now.

    Args:
        chance: a number in [0, 1): spreads who asks again, and the slots that are tried first.
    """
    if known.not_before > now:
        return Later(known.not_before - now, "model_waits")
    live = {n: slot for n, slot in known.slots.items() if slot.until > now}
    most = 1 if known.overloads >= OPENS_AT else limits.concurrent
    again = PAUSE * (1 + chance) / 2
    if len(live) >= most:
        return Later(again, "model_full", queued=True)
    if known.minute == int(now // MINUTE):
        rest = (known.minute + 1) * MINUTE - now
        if limits.requests and known.requests >= limits.requests:
            return Later(rest, "model_full")
        # A call that is larger than the limit is made alone in its minute: else it would wait for ever.
        if limits.tokens and known.tokens and known.tokens + tokens > limits.tokens:
            return Later(rest, "model_full")
    if not _fair(live, [slot.who for slot in known.waiting if slot.until > now], who, most):
        return Later(again, "model_shared", queued=True)
    free = [n for n in range(most) if n not in live]
    return Admit(free[int(chance * len(free))])


def _fair(live: Mapping[int, Slot], waiting: list[Who], who: Who, most: int) -> bool:
    """Whether one more is not more than the share of a tenant, and of a job within it, while others wait."""
    calls, share = [slot.who for slot in live.values()], most
    for of in (_tenant, _job):
        mine = of(who)
        others = {of(each) for each in waiting} - {mine}
        taken = [of(each) for each in calls]
        if others:
            share = ceil(share / len(others | set(taken) | {mine}))
            if taken.count(mine) >= share:
                return False
        calls = [each for each in calls if of(each) == mine]
        waiting = [each for each in waiting if of(each) == mine]
    return True


def _tenant(who: Who) -> str:
    return who.tenant


def _job(who: Who) -> str:
    return who.job


def pause_after_overload(overloads: int, wait: float) -> float | None:
    """Seconds for which nobody asks, after so many overloads in a row; None: the breaker stays closed."""
    return max(wait, OPEN) if overloads >= OPENS_AT else None


def parse(item: Mapping[str, Any] | None) -> Known:
    """What an item of the table says of a model."""
    item = item or {}
    return Known(
        slots={int(n[1:]): _slot(v) for n, v in item.items() if n[0] == "s" and n[1:].isdigit()},
        waiting=tuple(_slot(v) for n, v in item.items() if n.startswith("w_")),
        minute=item.get("minute", 0),
        requests=item.get("requests", 0),
        tokens=item.get("tokens", 0),
        not_before=float(item.get("not_before", 0)),
        overloads=item.get("overloads", 0),
    )


def _slot(value: Mapping[str, Any]) -> Slot:
    return Slot(Who(value["t"], value["j"]), float(value["u"]))
