"""The records of model calls: one item a call, written before it and settled after it, beside the work it was for.

What was paid for and then lost in a crash stays `begun`. No prompt and no answer is ever in a record.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count

from stafette.aws import keys, table
from stafette.aws.store import expires
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


def number(run: Run) -> int:
    """The number of the next call of this attempt. An attempt lives in one process, so that counts there."""
    return next(_numbers(run))


@lru_cache(maxsize=1024)
def _numbers(_run: Run) -> Iterator[int]:
    return count(1)


def begin(run: Run, call: Call) -> None:
    """Records a call that is about to be made."""
    table.put(keys.call(run, call.n), {**asdict(call), "expires": expires()})


def settle(run: Run, call: Call) -> None:
    """Records what a call came to."""
    table.update(
        keys.call(run, call.n),
        sets={
            name: getattr(call, name)
            for name in (
                "provider",
                "latency_ms",
                "input",
                "output",
                "cache_read",
                "cache_write",
                "cost_micro",
                "outcome",
                "usage_incomplete",
            )
        },
    )
