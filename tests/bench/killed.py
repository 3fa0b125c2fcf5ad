"""Workers killed for real: processes of their own, SIGKILL at random moments, and nobody who starts anything again.

The clock runs faster than real time, for a killed worker's message comes back after minutes; all else is as it ships.
"""

import json
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from local.clock import RealClock
from local.machine import Machine
from local.model import serve_model
from local.processes import processes
from local.prove.runner import quiet
from local.records import Records
from local.serve import served
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
    at_work: int
    effects: int
    twice: int
    refused: int
    recovery: tuple[float, ...]
    visibility: float
    seconds: float
    wrong: tuple[str, ...]


def run(jobs: int, kills: int, seed: int, workers: int = 8, every: float = 0.5) -> Report:
    """Runs so many tickets and kills so many workers, one in `every` real seconds at a mean."""
    quiet()
    began, chance = time.monotonic(), random.Random(seed)
    clock = RealClock(SPEED)
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
        struck: dict[str, float] = {}
        recovery: list[float] = []
        invoke = pool.invoke

        def seen(function: object, event: dict[str, object]) -> object:
            for record in event.get("Records", ()):  # type: ignore[attr-defined]
                if record["messageId"] in struck:
                    recovery.append(clock.now() - struck.pop(record["messageId"]))
            return invoke(function, event)  # type: ignore[arg-type]

        pool.invoke = seen  # type: ignore[assignment, method-assign]
        url = machine.queue_url("intake")
        ids = [f"killed-{n}" for n in range(jobs)]
        for name in ids:
            body = json.dumps(ticket(name, 3))
            machine.client("sqs").send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
        machine.start()
        at_work = done_kills = 0
        next_kill = time.monotonic() + every
        while time.monotonic() - began < _LONGEST:
            if done_kills < kills and time.monotonic() >= next_kill:
                event = pool.kill(chance)
                done_kills += 1
                at_work += event is not None
                for record in (event or {}).get("Records", ()):
                    struck.setdefault(record["messageId"], clock.now())
                next_kill = time.monotonic() + chance.expovariate(1 / every)
            elif machine.is_quiet() and not machine.backlog():
                break
            time.sleep(0.02)
        machine.stop()
        return _report(
            machine, ids, seed, done_kills, at_work, puts, recovery, time.monotonic() - began
        )


def _report(
    machine: Machine,
    ids: list[str],
    seed: int,
    kills: int,
    at_work: int,
    puts: Counter[tuple[str, str]],
    recovery: list[float],
    seconds: float,
) -> Report:
    records = Records(machine)
    endings = {name: records.ending(job_of(name)) for name in ids}
    wrong = [
        f"{n}: {e.stage} {e.status} {e.reason}" for n, e in endings.items() if e.status != "done"
    ]
    effects = sum(len(ending.outbox) for ending in endings.values())
    if effects != sum(status == "200" for _, status in puts):
        wrong.append(f"{effects} actions in the outbox, and {sorted(puts.items())}")
    hidden = [
        float(q.attributes.get("VisibilityTimeout", 30)) for q in machine.template.queues.values()
    ]
    return Report(
        jobs=len(ids),
        done=sum(ending.status == "done" for ending in endings.values()),
        seed=seed,
        kills=kills,
        at_work=at_work,
        effects=effects,
        twice=sum(n - 1 for (_, status), n in puts.items() if status == "200"),
        refused=sum(n for (_, status), n in puts.items() if status == "412"),
        recovery=tuple(recovery),
        visibility=max(hidden),
        seconds=seconds,
        wrong=tuple(wrong),
    )
