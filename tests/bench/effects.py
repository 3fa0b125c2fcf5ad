"""Effects in doubt: many jobs with one effect each, on an outside that is as unkind as one can be (outside_api.py).

Workers die at any call, tries meet, replies are lost. Each run goes on until the effect has its result or a person is
waited for. No action may be done twice, none may be missing from a run that ended well, and whoever is asked has the
facts. `retry` acts on an outside that honours keys; `look_up` and `ask` on one that does not.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from pydantic import BaseModel

from local.calls import Call, Phase
from local.clock import VirtualClock
from local.invocation import ProcessGone
from local.machine import Machine
from local.prove.runner import quiet
from stafette.aws.effects import GRACE, Effect, EffectInProgressError, NotAppliedError, once
from stafette.core.errors import BlockedError, TransientError
from stafette.core.form import Form
from stafette.core.run import Run
from tests.bench.outside_api import Client, OutsideApi, serve_outside

KINDS = ("retry", "look_up", "ask")
SECONDS = 60.0  # of an invocation
_MOST_TRIES = 60


class Done(BaseModel):
    """What the effect returns."""

    id: str


@dataclass
class Row:
    """What the runs of one kind came to."""

    kind: str
    runs: int = 0
    tries: int = 0
    died: int = 0
    met: int = 0
    doubts: int = 0
    settled: int = 0
    waiting: int = 0
    twice: int = 0
    missing: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: "Row") -> None:
        """Sums up."""
        for name, value in vars(other).items():
            if name != "kind":
                setattr(self, name, getattr(self, name) + value)


class Bench:
    """One outside and one machine, for many runs."""

    def __init__(self, machine: Machine, outside: OutsideApi) -> None:
        self.machine, self.outside = machine, outside
        assert isinstance(machine.clock, VirtualClock)
        self.clock: VirtualClock = machine.clock
        self._client = Client(outside)
        self._looked, self._acted, self._doubtful = 0, False, False
        self._owners = self._number = 0
        self._chance = random.Random(0)
        self._dies: tuple[int, Phase] | None = None
        self._meets = False
        self._again: Any = None
        machine.on_call(self._on_call)

    def effect(self, kind: str) -> Effect[Done]:
        """The effect, by what it does when in doubt."""
        in_doubt: Any = self._look_up if kind == "look_up" else kind
        return Effect("pay", Done, self._act, in_doubt)

    def run(self, number: int, seed: int) -> Row:
        """One run, to its end."""
        kind = KINDS[number % len(KINDS)]
        row, effect = Row(kind, runs=1), self.effect(kind)
        chance = self._chance = self.outside.chance = random.Random(f"{seed}:{number}")
        self.outside.honours = kind == "retry"
        job_id, answers = f"{number:026d}", dict[str, Any]()
        key = f"{job_id}/pay"
        self._doubtful = False
        result: Done | None = None
        form: Form | None = None
        after = 1  # deliveries that come when it is done
        while row.tries < _MOST_TRIES and after:
            row.tries += 1
            try:
                found = self._try(job_id, effect, answers, row)
            except ProcessGone:
                row.died += 1
                self._doubtful |= self._acted
                self.clock.advance(chance.uniform(0, 2 * SECONDS))
            except EffectInProgressError as error:
                self.clock.advance(error.wait * chance.uniform(0.6, 1.4))
            except TransientError:
                self.clock.advance(chance.uniform(2, 60))
            except BlockedError as blocked:
                form = blocked.form
                if form.name not in answers and not self._person(form, key, answers, row):
                    row.waiting = 1
                    break
            else:
                if result is not None and found != result:
                    row.wrong.append(f"{key}: first {result}, then {found}")
                after -= result is not None
                result = found
        self.clock.advance(SECONDS + GRACE)
        self.outside.settle()
        row.wrong += self._checked(key, result, row)
        return row

    def _person(self, form: Form, key: str, answers: dict[str, Any], row: Row) -> bool:
        """Four in five look into the books of the outside, and say what they found."""
        facts = form.facts
        if (facts["key"], facts["about"]) != (key, {"cents": 4711}) or not facts["began"]:
            row.wrong.append(f"{key}: asked without the facts")
        row.doubts += 1
        self.clock.advance(self._chance.uniform(60, 7_200))
        if self._chance.random() < 0.2:
            return False
        self.outside.settle()
        done = self.outside.ledger.get(key)
        answers[form.name] = {"done": True, "result": {"id": done[-1]}} if done else {"done": False}
        row.settled += 1
        return True

    def _checked(self, key: str, result: Done | None, row: Row) -> Iterator[str]:
        done = self.outside.ledger.get(key, [])
        row.twice = int(len(done) > 1)
        row.missing = int(result is not None and not done)
        if result is None and not row.waiting:
            yield f"{key}: no result after {row.tries} tries, and nobody is asked"
        if result is not None and done and result.id != done[0]:
            yield f"{key}: {result} is not what was done: {done}"

    def _try(self, job_id: str, effect: Effect[Done], answers: dict[str, Any], row: Row) -> Done:
        """One invocation; it may die at one of its calls, and another may come in between."""
        chance = self._chance
        self._looked, self._acted = 0, False
        self._dies = None
        if chance.random() < 0.25:
            self._dies = (chance.randrange(1, 4), chance.choice(("before", "after")))
        self._again = None
        if chance.random() < 0.1:
            row.met += 1
            self._again = lambda: once(self._run(job_id, answers), effect, {"cents": 4711})
        self._number = 0
        with self.machine.inside("act"):
            run = self._run(job_id, answers)
            self.outside.latest = run.ends + GRACE
            found = once(run, effect, {"cents": 4711})
        again = effect.in_doubt == "retry" and self._doubtful and self._acted
        if self._looked or again:
            self._doubtful = False
            row.doubts += 1
            row.settled += 1
        return found

    def _run(self, job_id: str, answers: dict[str, Any]) -> Run:
        self._owners += 1
        ends = self.clock.now() + SECONDS
        owner = f"invocation-{self._owners}/message"
        return Run(job_id, "0" * 32, "acme", "", "act", 1, owner, ends, answers=answers)

    def _on_call(self, phase: Phase, call: Call) -> None:
        if phase == "before":
            self._number += 1
        if self._again and phase == "before" and self._chance.random() < 0.5:
            again, self._again = self._again, None
            dies, self._dies = self._dies, None
            with self.machine.inside("act"):
                with suppress(TransientError, BlockedError):
                    again()
            self._dies = dies
        if self._dies == (self._number, phase):
            call.invocation.die()

    def _act(self, key: str, about: Any) -> Done:
        self._acted = True
        try:
            status, action = self._client.post(key, about)
        except (OSError, HTTPException) as error:
            self._doubtful = True
            raise TransientError("the outside gave no answer", reason="no_answer") from error
        if status == 503:
            raise NotAppliedError
        return Done(id=str(action))

    def _look_up(self, key: str) -> Done | None:
        self._looked += 1
        status, action = self._client.get(key)
        return Done(id=str(action)) if status == 200 else None


@contextmanager
def bench() -> Iterator[Bench]:
    """A bench that is open."""
    quiet()
    with serve_outside() as outside, Machine(clock=VirtualClock(), keep=False) as machine:
        yield Bench(machine, outside)


def run(numbers: range, seed: int) -> tuple[list[Row], Counter[str]]:
    """So many runs, one after the other: what each kind came to, and what went wrong with requests."""
    rows = {kind: Row(kind) for kind in KINDS}
    with bench() as open_:
        for number in numbers:
            found = open_.run(number, seed)
            rows[found.kind].add(found)
        return list(rows.values()), open_.outside.met
