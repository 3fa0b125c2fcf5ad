"""A confidence threshold chosen by labelled decisions: the one at which wrong answers and abstentions cost least."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from local.measure import Decision

# How many abstentions a wrong answer costs as much as, if nobody says otherwise.
WRONG_COSTS = 5.0


@dataclass(frozen=True, slots=True)
class Point:
    """What a threshold comes to: `cost` is for one line, in abstentions."""

    threshold: float
    cost: float
    wrong: int
    abstained: int


def at(decisions: Collection[Decision], threshold: float) -> list[Decision]:
    """The decisions, if answers less sure than that were abstentions."""
    return [replace(d, said=None) if (d.sure or 0.0) < threshold else d for d in decisions]


def point(decisions: Collection[Decision], threshold: float, wrong_costs: float) -> Point:
    """What a threshold costs: nothing where it is right to abstain, and a failure as much as an abstention."""
    kept = at(decisions, threshold)
    wrong = sum(not d.right and not d.abstained and d.failed is None for d in kept)
    left = sum(not d.right and (d.abstained or d.failed is not None) for d in kept)
    return Point(threshold, (wrong * wrong_costs + left) / len(kept), wrong, left)


def choose(decisions: Collection[Decision], wrong_costs: float = WRONG_COSTS) -> Point:
    """The threshold that costs least, to a hundredth; of equals the lowest, which answers most."""
    return min(
        (point(decisions, n / 100, wrong_costs) for n in range(101)),
        key=lambda each: (each.cost, each.threshold),
    )


def table(decisions: Collection[Decision], chosen: float, wrong_costs: float) -> list[Point]:
    """The chosen threshold among those a tenth apart."""
    thresholds = sorted({chosen, *(n / 10 for n in range(10))})
    return [point(decisions, threshold, wrong_costs) for threshold in thresholds]
