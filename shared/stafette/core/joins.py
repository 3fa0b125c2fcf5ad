"""Fan-out arithmetic and the policy of a join. A range is a shard of the join's counter."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

RANGE = 100
MOST_PARTS = 10_000


def range_of(index: int) -> int:
    """The range that part `index` (from 0) belongs to."""
    return index // RANGE


def ranges(total: int) -> int:
    """How many ranges `total` parts make."""
    return ceil(total / RANGE)


def members(range_no: int, total: int) -> range:
    """The parts of a range."""
    return range(range_no * RANGE, min((range_no + 1) * RANGE, total))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one part ended. A failure is a result too."""

    index: int
    value: Any | None
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the part has a value."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Policy:
    """When a join goes on. Judged once, when every part has ended: `all`, `any`, or at least n done."""

    rule: Literal["all", "any", "at_least"] = "all"
    n: int = 0
    tolerate: int = 0

    @staticmethod
    def all(tolerate: int = 0) -> "Policy":
        """Every part is done, but for at most `tolerate` failures."""
        return Policy("all", tolerate=tolerate)

    @staticmethod
    def any() -> "Policy":
        """At least one part is done; a fan-out over nothing goes on."""
        return Policy("any")

    @staticmethod
    def at_least(n: int) -> "Policy":
        """At least n parts are done; 0 goes on whatever happens."""
        return Policy("at_least", n=n)

    def holds(self, total: int, failed: int) -> bool:
        """Whether a join of `total` parts, `failed` of them failures, may go on."""
        done = total - failed
        match self.rule:
            case "all":
                return failed <= self.tolerate
            case "any":
                return done > 0 or total == 0
            case "at_least":
                return done >= self.n


def in_order(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """Passes outcomes on, one at a time, and stops at a gap: a join never runs over a part that is missing."""
    expected = 0
    for outcome in outcomes:
        if outcome.index != expected:
            break
        yield outcome
        expected += 1
    if expected != total:
        raise LookupError(
            f"part {expected} of {total} has no result, though the join was counted full"
        )
