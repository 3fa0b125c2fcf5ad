"""What decisions on labelled lines come to: pure figures, for an agent or whatever decides in its place."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import median
from typing import Any

from local.labelled import Line


@dataclass(frozen=True, slots=True)
class Decision:
    """What was said of a line.

    Attributes:
        said: the label; None: it abstained.
        sure: the confidence that came with it, if one did.
        failed: why there is no decision at all; such a one is wrong, and no abstention.
        calls: of a model.
        cost_micro, latency_ms: of all these calls.
    """

    line: Line
    said: str | None
    sure: float | None = None
    failed: str | None = None
    calls: int = 0
    cost_micro: int = 0
    latency_ms: float = 0

    @property
    def right(self) -> bool:
        """Whether that is what should have been said, or nothing was where nothing should have been."""
        return self.failed is None and self.said == self.line.label

    @property
    def abstained(self) -> bool:
        """Whether it left the line open."""
        return self.failed is None and self.said is None


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of many decisions. Shares are of all lines unless they say otherwise; None where there is nothing.

    Attributes:
        accuracy: the right ones, right abstentions included.
        coverage: of the lines with a label, those that were not left open.
        precision: of those that were answered, the right ones.
        abstained_right: of the lines that must be left open, those that were.
        abstained_wrong: of the lines with a label, those that were left open.
        cost_micro, latency_ms: for one decision; the cost on average, the latency as median and 95th percentile.
    """

    lines: int
    accuracy: float
    coverage: float | None
    precision: float | None
    abstained_right: float | None
    abstained_wrong: float | None
    failed: int
    calls: float
    cost_micro: float
    latency_ms: float
    latency_ms_p95: float

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class PerLabel:
    """How well one label was told. `precision` is None if it never was said."""

    label: str
    lines: int
    precision: float | None
    recall: float | None


def figures(decisions: Collection[Decision]) -> Figures:
    """The figures of decisions; there is one at least."""
    answered = [d for d in decisions if not d.abstained and d.failed is None]
    labelled = [d for d in decisions if d.line.label is not None]
    rest = [d for d in decisions if d.line.label is None]
    latencies = sorted(d.latency_ms for d in decisions)
    return Figures(
        lines=len(decisions),
        accuracy=_share([d for d in decisions if d.right], decisions) or 0.0,
        coverage=_share([d for d in labelled if d.said is not None], labelled),
        precision=_share([d for d in answered if d.right], answered),
        abstained_right=_share([d for d in rest if d.abstained], rest),
        abstained_wrong=_share([d for d in labelled if d.abstained], labelled),
        failed=sum(d.failed is not None for d in decisions),
        calls=sum(d.calls for d in decisions) / len(decisions),
        cost_micro=sum(d.cost_micro for d in decisions) / len(decisions),
        latency_ms=median(latencies),
        latency_ms_p95=percentile(latencies, 0.95),
    )


def per_label(decisions: Collection[Decision]) -> list[PerLabel]:
    """One row for each label that was said or should have been, sorted."""
    should = Counter(d.line.label for d in decisions)
    said = Counter(d.said for d in decisions if d.failed is None)
    right = Counter(d.said for d in decisions if d.right)
    return [
        PerLabel(
            label,
            should[label],
            right[label] / said[label] if said[label] else None,
            right[label] / should[label] if should[label] else None,
        )
        for label in sorted({label for label in (*should, *said) if label is not None})
    ]


def confusions(decisions: Collection[Decision]) -> Counter[tuple[str | None, str | None]]:
    """How often what should have been said (first) was taken for what was (second); None is an abstention."""
    return Counter((d.line.label, d.said) for d in decisions if d.failed is None)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of sorted values that so large a share of them does not exceed."""
    return values[max(0, ceil(len(values) * share) - 1)]


def _share(part: Collection[object], of: Collection[object]) -> float | None:
    return len(part) / len(of) if of else None
