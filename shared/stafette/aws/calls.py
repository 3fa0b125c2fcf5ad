"""The records of model calls: one item a call, written before it and settled after it, beside the work it was for.

What was paid for and then lost in a crash stays `begun`. No prompt is ever in a record, and of answers only those that
passed: they are results like any other, and an attempt that comes back must not pay for them again.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import count

from boto3.dynamodb.conditions import Attr

from stafette.aws import keys, table
from stafette.aws.store import VALUE_LIMIT, expires
from stafette.aws.table import ConditionFailedError, Item, Path
from stafette.core.run import Run

BEGUN = "begun"


@dataclass(frozen=True, slots=True)
class Call:
    """One model call.

    Attributes:
        n: its number within the attempt, from 1.
        agent: who asked.
        model: the model asked for.
        provider: where it was asked: `anthropic`, `bedrock`, `compatible`; `offline` once that has answered.
        why: what it was made for.
        began: seconds since the epoch.
        latency_ms: from the request to the whole answer.
        input, output, cache_read, cache_write: tokens, each counted once.
        cost_micro: micro-dollars at list price; `prices` names the table it was computed with.
        outcome: `begun`, `ok`, or the reason that it came to nothing.
        usage_incomplete: it may have been billed, and nobody said for how much.
        question: tells the questions of one piece of work apart, the same in each attempt.
        fault: what is wrong with an answer that may not be used.
        value: the answer that passed, as JSON; None from the table of an older version, or if it is large.
        cache: `hit` where nothing was asked, because the answer was known; else empty.
        saved_micro: what that answer cost when it was asked for.
    """

    n: int
    agent: str
    model: str
    provider: str
    why: str
    began: float
    prices: str
    latency_ms: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost_micro: int = 0
    outcome: str = BEGUN
    usage_incomplete: bool = True
    question: str = ""
    fault: str | None = None
    value: str | None = field(default=None, repr=False)
    cache: str = ""
    saved_micro: int = 0


def number(run: Run) -> int:
    """The number of the next call of this attempt. An attempt lives in one process, so that counts there."""
    return next(_numbers(run))


@lru_cache(maxsize=1024)
def _numbers(_run: Run) -> Iterator[int]:
    return count(1)


def begin(run: Run, call: Call) -> None:
    """Records a call that is about to be made."""
    table.put(keys.call(run, call.n), {**_item(call), "expires": expires()})


_SETTLED = (
    *("provider", "latency_ms", "input", "output", "cache_read", "cache_write", "cost_micro"),
    *("outcome", "usage_incomplete", "fault", "value"),
)


def settle(run: Run, call: Call) -> None:
    """Records what a call came to. What the table would not take when it began was not asked: it stays without one."""
    known = _item(call)
    sets: dict[Path, object] = {name: known[name] for name in _SETTLED if name in known}
    with suppress(ConditionFailedError):
        table.update(keys.call(run, call.n), sets=sets, when=Attr("pk").exists())


def earlier(run: Run) -> tuple[Item, ...]:
    """The records of the attempts at this work before this one, in the order of the calls."""
    pk, sk = keys.call(run, 1)
    handoff, attempt, _ = sk.rsplit("#", 2)
    found = table.query(pk, f"{handoff}#")
    return tuple(item for item in found if item["sk"].split("#")[-2] < attempt)


def _item(call: Call) -> dict[str, object]:
    """The attributes of a record: what is not known is not there, nor is a value too large for an item."""
    known = {name: value for name, value in asdict(call).items() if value is not None}
    if not call.cache:
        del known["cache"], known["saved_micro"]
    if len((call.value or "").encode()) > VALUE_LIMIT:
        del known["value"]
    return known
