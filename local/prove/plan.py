"""What is tried: schedules of faults, made from what the undisturbed run did. The same seed makes the same plan."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

from local.prove.faults import ABOUT, AT_CALLS, WITH_MESSAGES, Fault, Schedule
from local.prove.prover import Course

# Interleavings of two deliveries that are all tried; where there are more, so many are drawn.
MEETINGS = 40
TWICE, RANDOM = 120, 60
ROWS = {
    **ABOUT,
    "die-twice": "the process dies, and another dies at a later call",
    "random": "up to five faults of any kind",
}


@dataclass(frozen=True)
class Sizes:
    """How much of what cannot be tried whole is drawn. `each` is the share of the single faults, 1 is all."""

    meetings: int = MEETINGS
    twice: int = TWICE
    random: int = RANDOM
    each: float = 1.0


def singles(course: Course, kind: str) -> list[Schedule]:
    """One schedule for each place where a fault of this kind can be."""
    counts = course.calls if kind in AT_CALLS else course.taken
    functions = sorted(counts)
    return [((Fault(kind, name, n)),) for name in functions for n in range(1, counts[name] + 1)]


def pairs(course: Course, chance: random.Random, most: int) -> list[Schedule]:
    """Deaths at two calls: all, or so many drawn. The second is counted on in the run that the first disturbs."""
    kinds, places = ("die-before", "die-after"), singles(course, "die")
    found = [
        (Fault(first, a.function, a.number), Fault(second, b.function, b.number + again))
        for (a,) in places
        for (b,) in places
        # A later call: of the same function, or of any other. One that is never reached is not counted as a point.
        for again in ((0, 1, 2, 3) if a.function == b.function else (0,))
        for first in kinds
        for second in kinds
        if (a.function, a.number) != (b.function, b.number + again)
        and (a.function != b.function or b.number + again > a.number)
    ]
    unique = list(dict.fromkeys(found))
    return unique if len(unique) <= most else chance.sample(unique, most)


def drawn(course: Course, chance: random.Random, count: int) -> Iterator[Schedule]:
    """Schedules of two to five faults of any kind."""
    for _ in range(count):
        faults = []
        for _ in range(chance.randint(2, 5)):
            kind = chance.choice((*AT_CALLS, *WITH_MESSAGES))
            counts = course.calls if kind in AT_CALLS else course.taken
            name = chance.choice(sorted(counts))
            order = "".join(chance.choices("ab", k=12)) if kind == "meet" else ""
            faults.append(Fault(kind, name, chance.randint(1, counts[name]), order))
        yield tuple(faults)


class Meetings:
    """The interleavings of two deliveries of one message: each is named before it is run, from what the last one did.

    All of them, in the manner of a depth-first search; or, if they are more than `most`, each place where the second
    can come whole, and the rest drawn.
    """

    def __init__(self, fault: Fault, chance: random.Random, most: int) -> None:
        self._fault, self._chance, self._most = fault, chance, most
        self._order: str | None = ""
        self.done: set[str] = set()
        self.all = False

    def __iter__(self) -> Iterator[Schedule]:
        yield self._as("")
        first = max(self.done, key=len)
        calls = len(first)
        yield self._as("a" * calls + "B")
        # The second delivery makes two calls at least; that many interleavings there are at least.
        if comb(calls + 2, 2) <= self._most:
            yield from self._depth_first(first)
            return
        yield from self._sampled(calls)

    def _depth_first(self, last: str) -> Iterator[Schedule]:
        seen = {last}
        stack = [last]
        while stack and len(self.done) < self._most:
            path = stack.pop()
            for place in range(len(path) - 1, -1, -1):
                other = path[:place] + ("b" if path[place] == "a" else "a")
                if any(each.startswith(other) for each in seen):
                    continue
                if len(self.done) >= self._most:
                    return
                before = set(self.done)
                yield self._as(other)
                for new in self.done - before:
                    seen.add(new)
                    stack.append(new)
        self.all = not stack

    def _sampled(self, calls: int) -> Iterator[Schedule]:
        for place in range(calls):
            yield self._as("a" * place + "B")
        while len(self.done) < self._most:
            yield self._as("".join(self._chance.choices("ab", k=calls + 4)))
            self._most -= 1  # one that was there before counts too

    def _as(self, order: str) -> Schedule:
        return (Fault("meet", self._fault.function, self._fault.number, order),)
