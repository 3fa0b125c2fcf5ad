"""What a run is and what is known of it: the scenario, its course, a moment of it, and what it came to."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.prove.bill import Bill
from local.prove.faults import Fault
from local.records import Ending
from stafette.core import messages

START = 1_767_225_600.0  # the first of January 2026: a run does not depend on the day


@dataclass(frozen=True)
class Scenario:
    """What is proved: requests, each with a `request_id` of its own, and what their jobs come to."""

    name: str
    requests: tuple[dict[str, Any], ...]

    def jobs(self) -> dict[str, str]:
        """The ids of its jobs, and whose they are."""
        asked = [(each.get("tenant", "default"), each["request_id"]) for each in self.requests]
        return {messages.job_id(tenant, request, ""): tenant for tenant, request in asked}


@dataclass
class Course:
    """What was seen of a run, and the faults that are still to come.

    Attributes:
        calls: calls that each function began, of AWS and of the model.
        batches: those of the calls that send a batch.
        taken: messages that each function was given, and `names` what they are called.
        served: model calls that were answered, which are those that are paid for.
        acted: how often the outside was asked to act and did not refuse: puts of each object that is no artifact.
        died, stalled: how often a worker did, by function. unheard, refused: calls whose answer
            did not arrive, and that were refused, by service; the model is one.
        early: joins that were delivered before all of their parts had ended.
        played: the faults that came to pass; orders: what interleaved deliveries did.
        trace: the run, line by line.
    """

    calls: Counter[str] = field(default_factory=Counter)
    batches: list[tuple[str, int]] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)
    names: dict[str, Fault] = field(default_factory=dict)
    served: int = 0
    acted: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)
    stalled: Counter[str] = field(default_factory=Counter)
    unheard: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    early: list[str] = field(default_factory=list)
    played: list[Fault] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    stuck: str | None = None
    orders: list[str] = field(default_factory=list)
    pending: list[Fault] = field(default_factory=list)

    def due(self, kinds: tuple[str, ...], function: str, number: int) -> Fault | None:
        """The fault of one of these kinds that is due at a place, which thereby comes to pass."""
        for fault in self.pending:
            if fault.kind in kinds and (fault.function, fault.number) == (function, number):
                self.pending.remove(fault)
                self.played.append(fault)
                return fault
        return None

    def say(self, line: str) -> None:
        """Adds a line to the trace."""
        self.trace.append(line)


@dataclass(frozen=True)
class Moment:
    """A run just before one of its deliveries."""

    stored: bytes
    now: float
    turn: int
    course: Course


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        endings: by job; None for a job that has no head.
        left: what is still on a queue, and the records of dead messages.
        told: how often each notice was published.
        bill: what is on record of its model calls.
    """

    course: Course
    endings: Mapping[str, Ending | None]
    left: tuple[str, ...]
    dead: tuple[str, ...]
    told: Counter[str]
    bill: Bill
