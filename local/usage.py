"""What model calls came to together. Pure: calls in, sums out; money in whole micro-dollars."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from stafette.aws.calls import BEGUN, Call
from stafette.aws.table import Item

_OF_CALL = {each.name for each in fields(Call)}


@dataclass(slots=True)
class Usage:
    """Sums of model calls.

    Attributes:
        calls: all of them, also those that came to nothing; what the cache answered is no call.
        failed: of these, how many came to nothing.
        retries, fallbacks: of these, how many were made because an answer before fell short.
        unsettled: of these, how many may have been billed, and nobody said for how much.
        hits: how often the cache answered.
        input, output, cache_read, cache_write: tokens, each counted once.
        cost_micro: at list price.
        saved_micro: what the answers of the cache had cost.
    """

    calls: int = 0
    failed: int = 0
    retries: int = 0
    fallbacks: int = 0
    unsettled: int = 0
    hits: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost_micro: int = 0
    saved_micro: int = 0
    _latencies: Counter[int] = field(default_factory=Counter, repr=False)

    def add(self, call: Call) -> None:
        """Counts a call."""
        if call.cache:
            self.hits += 1
            self.saved_micro += call.saved_micro
            return
        self.calls += 1
        self.failed += call.outcome not in ("ok", BEGUN)
        self.retries += call.why == "retry"
        self.fallbacks += call.why == "fallback"
        self.unsettled += call.usage_incomplete
        self.input += call.input
        self.output += call.output
        self.cache_read += call.cache_read
        self.cache_write += call.cache_write
        self.cost_micro += call.cost_micro
        if call.outcome == "ok":
            self._latencies[call.latency_ms] += 1

    def add_all(self, other: "Usage") -> None:
        """Counts what another one has counted."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._latencies += other._latencies

    @property
    def latency_ms(self) -> int | None:
        """The median, the lower of two, of the calls that were answered well; None if there are none."""
        left = (self._latencies.total() + 1) // 2
        for latency in sorted(self._latencies):
            left -= self._latencies[latency]
            if left <= 0:
                return latency
        return None

    def as_data(self) -> dict[str, int]:
        """The sums, for machines."""
        return {name: getattr(self, name) for name in SUMS}


SUMS = tuple(each.name for each in fields(Usage) if not each.name.startswith("_"))


def calls_in(items: list[Item]) -> Iterator[tuple[str, int, Call]]:
    """The model calls among items: handoff, attempt and call."""
    for item in items:
        if item["sk"].startswith("CALL#"):
            _, handoff, attempt, _ = item["sk"].split("#")
            yield handoff, int(attempt), call_of(item)


def call_of(item: Item) -> Call:
    """A call as the table gives it; what newer code added is left aside."""
    known = {name: value for name, value in item.items() if name in _OF_CALL}
    return Call(**{**known, "began": float(item["began"])})
