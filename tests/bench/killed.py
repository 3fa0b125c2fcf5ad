"""Workers killed for real: processes of their own, SIGKILL at random moments, and nobody who starts anything again.

The clock runs faster than real time, for a killed worker's message comes back after minutes; all else is as it ships.
"""

import json
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
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

SPEED = 10.0
# Real seconds after which what has not ended has got stuck.
_LONGEST = 900.0


@dataclass
class Recovery:
    """Of a function: how often its worker was killed, and for each message that one held, the seconds of the clock
    from the kill until that message was done and acknowledged."""

    function: str
    limit: int  # of an invocation, and so of its leases; in seconds
    visibility: int  # of its queue: when a message comes again
    kills: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """What became of the jobs. `twice` counts actions that the outbox carried out again, `refused` those that it was
    asked for again and did not, `missing` those that a draft wants and the outbox does not have."""

    jobs: int
    done: int
    seed: int
    kills: int
    effects: int
    twice: int
    refused: int
    missing: int
    recoveries: tuple[Recovery, ...]
    seconds: float
    wrong: tuple[str, ...]


class Killer:
    """Draws which invocations are killed, and when: at any moment of as long as one of their kind takes."""

    def __init__(self, machine: Machine, pool: Processes, share: float, seed: int) -> None:
        self.recoveries = {
            m.function.name: Recovery(
                m.function.name, m.function.timeout, int(m.queue.attributes["VisibilityTimeout"])
            )
            for m in machine.mappings
        }
        self._pool, self._clock, self._share = pool, machine.clock, share
        self._chance, self._lock = random.Random(seed), Lock()
        self._struck: dict[str, float] = {}
        self._takes: dict[str, float] = {}
        self._invoke = pool.invoke
        pool.invoke = self.invoke  # type: ignore[method-assign]

    def invoke(self, function: Function, event: Any) -> Outcome:
        """In the place of the pool's own."""
        with self._lock:
            drawn = self._chance.random() < self._share
            after = self._chance.random() * self._takes.get(function.name, 0.2)
        if drawn:
            Timer(after, self._kill, (function, event)).start()
        began = time.monotonic()
        outcome = self._invoke(function, event)
        if outcome.kind == "returned":
            self._takes[function.name] = time.monotonic() - began
            with self._lock:
                self._recovered(function, event, outcome.response or {})
        return outcome

    def _recovered(self, function: Function, event: Any, answer: Any) -> None:
        failed = {each["itemIdentifier"] for each in answer.get("batchItemFailures", ())}
        done = {record["messageId"] for record in event.get("Records", ())} - failed
        for each in done & self._struck.keys():
            since = self._struck.pop(each)
            self.recoveries[function.name].seconds.append(self._clock.now() - since)

    def _kill(self, function: Function, event: Any) -> None:
        with self._lock:
            if self._pool.kill(event):
                for record in event.get("Records", ()):
                    self._struck.setdefault(record["messageId"], self._clock.now())
                if function.name in self.recoveries:
                    self.recoveries[function.name].kills += 1


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
        killer = Killer(machine, pool, share, seed)
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
    wrong, done, effects, missing = [], 0, 0, 0
    for name in ids:
        if records.item(f"JOB#{job_of(name)}", "JOB") is None:
            wrong.append(f"{name} never began")
            continue
        ending = records.ending(job_of(name))
        done += ending.status == "done"
        effects += len(ending.outbox)
        draft = json.loads(ending.results.get("draft", "{}"))
        wanted = {"send_reply.json"} | (
            {"open_follow_up.json"} if draft.get("follow_up") else set()
        )
        missing += len(wanted - ending.outbox.keys())
        if ending.status != "done":
            wrong.append(f"{name}: {ending.stage}, {ending.status}: {ending.reason}")
    if effects != sum(status == "200" for _, status in puts):
        wrong.append(f"{effects} actions in the outbox, and {sorted(puts.items())}")
    return Report(
        jobs=len(ids),
        done=done,
        seed=seed,
        kills=sum(each.kills for each in killer.recoveries.values()),
        effects=effects,
        twice=sum(n - 1 for (_, status), n in puts.items() if status == "200"),
        refused=sum(n for (_, status), n in puts.items() if status == "412"),
        missing=missing,
        recoveries=tuple(each for each in killer.recoveries.values() if each.kills),
        seconds=seconds,
        wrong=tuple(wrong),
    )
