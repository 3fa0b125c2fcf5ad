"""Workers killed for real: processes of their own, SIGKILL at random moments, and nobody who starts anything again.

The clock runs faster than real time, for a killed worker's message comes back after minutes; all else is as it ships.
"""

import json
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any

from local.clock import RealClock
from local.functions import Outcome
from local.machine import Machine
from local.model import serve_model
from local.processes import Processes, processes
from local.prove.runner import quiet
from local.records import Records
from local.serve import served
from local.template import Function
from tests.support import job_of, ticket

SPEED = 20.0
# Real seconds after which what has not ended has got stuck.
_LONGEST = 400.0


@dataclass(frozen=True)
class Report:
    """What became of the jobs. `twice` counts actions that the outbox carried out again, `refused` those that it was
    asked for again and did not. `recovery` is in seconds of the clock, from a kill to the next time that a message of
    its batch was taken."""

    jobs: int
    done: int
    seed: int
    kills: int
    effects: int
    twice: int
    refused: int
    recovery: tuple[float, ...]
    visibility: float
    seconds: float
    wrong: tuple[str, ...]


class Killer:
    """Draws which invocations are killed, and when: at any moment of as long as one of their kind takes.

    `recovery` has the seconds of the clock from each kill to the next time that a message of its batch was taken.
    """

    def __init__(self, pool: Processes, clock: RealClock, share: float, seed: int) -> None:
        self.kills = 0
        self.recovery: list[float] = []
        self._pool, self._clock, self._share = pool, clock, share
        self._chance, self._lock = random.Random(seed), Lock()
        self._struck: dict[str, float] = {}
        self._takes: dict[str, float] = {}
        self._invoke = pool.invoke
        pool.invoke = self.invoke  # type: ignore[method-assign]

    def invoke(self, function: Function, event: Any) -> Outcome:
        """In the place of the pool's own."""
        with self._lock:
            for record in event.get("Records", ()):
                if record["messageId"] in self._struck:
                    since = self._struck.pop(record["messageId"])
                    self.recovery.append(self._clock.now() - since)
            drawn = self._chance.random() < self._share
            after = self._chance.random() * self._takes.get(function.name, 0.2)
        if drawn:
            Timer(after, self._kill, (event,)).start()
        began = time.monotonic()
        outcome = self._invoke(function, event)
        if outcome.kind == "returned":
            self._takes[function.name] = time.monotonic() - began
        return outcome

    def _kill(self, event: Any) -> None:
        if self._pool.kill(event):
            with self._lock:
                self.kills += 1
                for record in event.get("Records", ()):
                    self._struck[record["messageId"]] = self._clock.now()


def run(jobs: int, share: float, seed: int, workers: int = 8) -> Report:
    """Runs so many tickets, and kills the workers of such a share of all invocations."""
    quiet()
    began, clock = time.monotonic(), RealClock(SPEED)
    with ExitStack() as stack:
        model = stack.enter_context(serve_model())
        access = {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
        environment = {"POWERTOOLS_METRICS_DISABLED": "true", "POWERTOOLS_LOG_LEVEL": "CRITICAL"}
        machine = stack.enter_context(
            Machine(clock=clock, model_access=access, environment=environment, keep=False)
        )
        puts: Counter[tuple[str, str]] = Counter()

        def count(method: str, path: str, status: str) -> None:
            if method == "PUT" and "/outbox/" in path:
                puts[path, status[:3]] += 1

        endpoint = stack.enter_context(served(machine, seen=count))
        pool = stack.enter_context(processes(machine, endpoint, workers))
        killer = Killer(pool, clock, share, seed)
        url = machine.queue_url("intake")
        ids = [f"killed-{n}" for n in range(jobs)]
        for name in ids:
            body = json.dumps(ticket(name, 3))
            machine.client("sqs").send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
        machine.start()
        machine.wait_until_quiet(_LONGEST)
        machine.stop()
        return _report(machine, ids, seed, killer, puts, time.monotonic() - began)


def _report(
    machine: Machine,
    ids: list[str],
    seed: int,
    killer: Killer,
    puts: Counter[tuple[str, str]],
    seconds: float,
) -> Report:
    records = Records(machine)
    wrong, done, effects = [], 0, 0
    for name in ids:
        if records.item(f"JOB#{job_of(name)}", "JOB") is None:
            wrong.append(f"{name} never began")
            continue
        ending = records.ending(job_of(name))
        done += ending.status == "done"
        effects += len(ending.outbox)
        if ending.status != "done":
            wrong.append(f"{name}: {ending.stage}, {ending.status}: {ending.reason}")
    if effects != sum(status == "200" for _, status in puts):
        wrong.append(f"{effects} actions in the outbox, and {sorted(puts.items())}")
    queues = machine.template.queues.values()
    return Report(
        jobs=len(ids),
        done=done,
        seed=seed,
        kills=killer.kills,
        effects=effects,
        twice=sum(n - 1 for (_, status), n in puts.items() if status == "200"),
        refused=sum(n for (_, status), n in puts.items() if status == "412"),
        recovery=tuple(killer.recovery),
        visibility=max(float(q.attributes.get("VisibilityTimeout", 30)) for q in queues),
        seconds=seconds,
        wrong=tuple(wrong),
    )
