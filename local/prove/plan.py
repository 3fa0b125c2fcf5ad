"""What is tried: schedules of faults, made from what the undisturbed run did. The same seed makes the same plan."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

from local.prove.course import Course
from local.prove.faults import ABOUT, AT_BATCHES, AT_CALLS, WITH_MESSAGES, Fault, Schedule

# Interleavings of two deliveries that are all tried; where there are more, so many are drawn.
MEETINGS = 16
TWICE, RANDOM = 80, 40


@dataclass(frozen=True)
class Sizes:
    """How much of what cannot be tried whole is drawn; `twice` None is all pairs."""

    meetings: int = MEETINGS
    twice: int | None = TWICE
    random: int = RANDOM


def about(kind: str, sizes: Sizes) -> str:
    """What a kind of schedules is; of those that are drawn, how many."""
    match kind:
        case "meet":
            return f"{ABOUT[kind]}; {sizes.meetings} a message at most"
        case "die-twice":
            size = "all pairs" if sizes.twice is None else f"{sizes.twice} drawn"
            return f"the process dies, and another dies at a later call; {size}"
        case "random":
            return f"up to five faults of any kind; {sizes.random} drawn"
    return ABOUT.get(kind, "")


def singles(course: Course, kind: str) -> list[Schedule]:
    """One schedule for each place where a fault of this kind can be."""
    if kind in AT_BATCHES:
        return [(Fault(kind, name, n),) for name, n in sorted(course.batches)]
    counts = course.calls if kind in AT_CALLS else course.taken
    functions = sorted(counts)
    return [((Fault(kind, name, n)),) for name in functions for n in range(1, counts[name] + 1)]


def pairs(course: Course, chance: random.Random, most: int | None) -> list[Schedule]:
    """Deaths at two calls: all pairs (`most` None), or so many drawn.

    A function goes on counting after its first death, so the second may fall on any call of the next delivery.
    """
    found = [
        (Fault(first, a, n), Fault(second, b, m))
        for a, calls in sorted(course.calls.items())
        for n in range(1, calls + 1)
        for b, others in sorted(course.calls.items())
        if a <= b
        for m in (range(n + 1, n + others + 1) if a == b else range(1, others + 1))
        for first in ("die-before", "die-after")
        for second in ("die-before", "die-after")
    ]
    return found if most is None or len(found) <= most else chance.sample(found, most)


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
    """The interleavings of two deliveries of one message. Each is named when the one before has been run.

    All of them, depth first; or, where there are more than `most`, each place at which the second can come whole, and
    the rest drawn. `run` takes what `Course.orders` says of the last.
    """

    def __init__(self, message: Fault, chance: random.Random, most: int) -> None:
        self._message, self._chance, self._most = message, chance, most
        self.run: list[str] = []
        self.all = False

    def __iter__(self) -> Iterator[Schedule]:
        yield self._as("")
        calls = len(self.run[0])
        yield self._as("aB")
        others = self.run[1].count("b")
        if comb(calls + others, others) > self._most:
            for place in range(2, calls + 1):
                yield self._as("a" * place + "B")
            while len(self.run) < self._most:
                yield self._as("".join(self._chance.choices("ab", k=calls + others)))
            return
        # Every run adds the branches that it passed: where the first went on, the second could have.
        branches = self._branches("", self.run[0])
        while branches and len(self.run) < self._most:
            prefix = branches.pop()
            yield self._as(prefix)
            branches += self._branches(prefix, self.run[-1])
        self.all = not branches

    @staticmethod
    def _branches(prefix: str, made: str) -> list[str]:
        places = range(len(prefix), len(made))
        return [made[:place] + "b" for place in places if made[place] == "a"]

    def _as(self, order: str) -> Schedule:
        return (Fault("meet", self._message.function, self._message.number, order),)
