"""What a job spent its time on: a tree of stages, parts, model calls and effects, each with when and how long. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import pairwise
from typing import Any

from local.usage import Usage
from stafette.aws.calls import Call, attributes
from stafette.core.job import Head

# What a moment was spent on. `lost`: a worker left no word, and its message had to come back.
KINDS = ("queue", "lost", "wait", "person", "work")


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time, and what it was spent on."""

    what: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt at some work, as far as it left word."""

    attempt: int
    began: float
    ended: float
    reason: str | None = None


@dataclass(slots=True)
class Span:
    """One timed piece of work.

    Attributes:
        kind: `stage`, `parts`, `part`, `call` or `effect`.
        began: when it could have begun: it was sent.
        ended: None while it goes on.
        outcome: `done`, `ok`, or what became of it.
        about: what more is to be said of it.
        usage: of the model calls in it.
        call: the call that it is.
    """

    kind: str
    name: str
    began: float
    ended: float | None
    outcome: str
    attempt: int = 0
    about: str = ""
    segments: tuple[Segment, ...] = ()
    usage: Usage = field(default_factory=Usage)
    children: list["Span"] = field(default_factory=list)
    call: Call | None = None

    def spent(self, what: str) -> float:
        """Seconds of its own that were spent so."""
        return sum(each.ended - each.began for each in self.segments if each.what == what)

    def as_data(self) -> dict[str, Any]:
        """For machines; a model call has the names of OpenTelemetry."""
        return {
            "kind": self.kind,
            "name": self.name,
            "began": self.began,
            "ended": self.ended,
            "outcome": self.outcome,
            **({"attempt": self.attempt} if self.attempt else {}),
            **({"about": self.about} if self.about else {}),
            "seconds": {what: round(self.spent(what), 3) for what in KINDS if self.spent(what)},
            **({"attributes": attributes(self.call)} if self.call else {}),
            **({"usage": self.usage.as_data()} if self.usage.calls + self.usage.hits else {}),
            "children": [child.as_data() for child in self.children],
        }


@dataclass(slots=True)
class Parts:
    """A fan-out: what its parts came to together, and a few of them."""

    split: str
    sent: float
    total: int = 0
    failed: int = 0
    open: int = 0
    ended: float | None = None
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    usage: Usage = field(default_factory=Usage)
    kept: list[tuple[bool, float, int, Span]] = field(default_factory=list)

    def add(self, span: Span, number: int, most: int | None) -> None:
        """Counts a part, and keeps it if it is one of those to be shown. `most` is how many; None keeps all."""
        self.total += 1
        self.failed += span.outcome.startswith("failed")
        self.open += span.ended is None
        self.ended = max(self.ended or 0.0, span.ended or 0.0) or None
        self.usage.add_all(span.usage)
        for what in KINDS:
            self.spent[what] += span.spent(what)
        took = sum(span.spent(what) for what in KINDS if what != "queue")
        ranked = (span.outcome.startswith("failed"), took, -number, span)
        if most is None or len(self.kept) < most:
            heappush(self.kept, ranked)
        else:
            heappushpop(self.kept, ranked)

    def expect(self, total: int) -> None:
        """Counts those as open that no record is of yet, of so many."""
        self.open += max(0, total - self.total)
        self.total = max(total, self.total)

    def span(self, now: float) -> Span:
        """All of it as one span, with the parts that were kept in their order."""
        kept = [span for *_, span in sorted(self.kept, key=lambda each: -each[2])]
        ended = None if self.open else self.ended
        left = self.total - len(kept)
        done = self.total - self.failed - self.open
        about = ", ".join(
            [
                f"{done} of {self.total} done",
                *([f"{self.failed} failed"] if self.failed else []),
                *([f"{self.open} open"] if self.open else []),
                *([f"{left} more not shown"] if left else []),
            ]
        )
        return Span(
            "parts",
            f"{self.split}, {self.total} parts",
            self.sent,
            ended,
            "open" if self.open else "done",
            about=about,
            segments=(Segment("work", self.sent, ended or now),),
            usage=self.usage,
            children=kept,
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """A job as a tree of spans, with what it comes to.

    Attributes:
        ended: when the job ended; until then it is now.
        spent: seconds by kind, over all stages and parts; what ran side by side counts as often as it ran.
    """

    head: Head
    ended: float
    spans: list[Span]
    spent: dict[str, float]
    usage: Usage

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "job_id": self.head.job_id,
            "trace_id": self.head.trace_id,
            "flow": self.head.flow,
            "tenant": self.head.tenant,
            "status": self.head.status.value,
            "reason": self.head.reason,
            "began": self.head.created,
            "ended": self.ended if self.head.status.ended else None,
            "spans": [span.as_data() for span in self.spans],
            "totals": {
                "wall_seconds": round(self.ended - self.head.created, 3),
                "seconds": {what: round(spent, 3) for what, spent in self.spent.items()},
                **self.usage.as_data(),
            },
        }


# --- how time was spent ------------------------------------------------------------------------------------------


def segments(
    sent: float,
    tries: list[Try],
    until: float,
    *,
    persons: Sequence[tuple[float, float]] = (),
    aside: float | None = None,
    lost: bool = False,
) -> tuple[Segment, ...]:
    """What the time from `sent` to `until` was spent on.

    Args:
        tries: what is known of attempts, in order.
        persons: from when until when somebody was asked.
        aside: when the work was first put aside.
        lost: a try before the first known one left no word.
    """
    found: list[Segment] = []
    here = sent
    for number, each in enumerate(sorted(tries, key=lambda known: known.began)):
        began = max(here, each.began)
        found += _gap(here, began, persons, aside, first=number == 0, lost=lost)
        here = max(here, each.ended)
        found.append(Segment("work", began, here))
    found += _gap(here, until, persons, aside, first=not tries, lost=lost)
    return tuple(each for each in found if each.ended > each.began)


def _gap(
    began: float,
    ended: float,
    persons: Sequence[tuple[float, float]],
    aside: float | None,
    *,
    first: bool,
    lost: bool,
) -> Iterator[Segment]:
    """A time in which nobody worked, cut where it changes what was waited for."""
    marks = {began, ended, *(mark for person in persons for mark in person)}
    if aside is not None:
        marks.add(aside)
    cuts = sorted(mark for mark in marks if began <= mark <= ended)
    for start, end in pairwise(cuts):
        if any(asked <= start and end <= closed for asked, closed in persons):
            what = "person"
        elif aside is not None and start >= aside:
            what = "wait"
        elif first:
            what = "lost" if lost else "queue"
        else:
            what = "wait"
        yield Segment(what, start, end)
