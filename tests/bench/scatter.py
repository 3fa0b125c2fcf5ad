"""Three independent agents at once and one that reports what they say, in real time, on the flow of `readers/`.

The offline model takes as long as each agent is said to take, by the clock on the wall. All else is as it ships: each
agent is a part of a fan-out behind its queue, the report is the join, and every call has its guards and its record.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from unittest.mock import patch

from local.clock import RealClock
from local.machine import Machine
from local.model import OfflineModel, serve_model
from local.prove.runner import quiet
from local.records import Json, Records
from stafette.agent import definition
from stafette.core.messages import job_id

PLACE = Path(__file__).parent / "readers"
# Seconds that the model takes over each agent's call.
SECONDS = {"orders": 0.8, "payments": 0.9, "terms": 0.6, "reporter": 0.4}
READERS = tuple(SECONDS)[:3]
IDEAL = max(SECONDS[name] for name in READERS) + SECONDS["reporter"]
IDEAL_SERIAL = sum(SECONDS.values())
# What the fan-out may take, as a share of the ideal.
MOST = 1.15
_LONGEST = 60.0


@dataclass(frozen=True)
class Asked:
    """One call as the model saw it: from when the request had come until its answer left, on the clock of the wall."""

    agent: str
    began: float
    ended: float


@dataclass(frozen=True)
class Taken:
    """Seconds of one job.

    Attributes:
        gathering: from when the stage that scatters began its work until the report was written.
        whole: from the request being sent until the job was done.
        before, between: of `gathering`, until the first call had come to the model, and from the last of the three
            answers until the request for the report had come.
        calls: as the model saw them, by when they came.
    """

    gathering: float
    whole: float
    before: float
    between: float
    calls: tuple[Asked, ...]


class _Slow:
    """Lets the model take its time, and notes when it was asked."""

    def __init__(self, model: OfflineModel) -> None:
        self.calls: list[Asked] = []
        self._prompts = {agent.prompt: name for name, agent in _agents().items()}
        self._began: dict[int, float] = {}
        self._lock = Lock()
        self._model = model
        model.observe(self._see)

    def _see(self, phase: Literal["before", "after"], request: Json) -> None:
        agent = self._prompts[request["system"][0]["text"]]
        if phase == "before":
            with self._lock:
                self._began[id(request)] = time.time()
            time.sleep(SECONDS[agent])
            return
        with self._lock:
            self.calls.append(Asked(agent, self._began.pop(id(request)), time.time()))


@dataclass
class Bench:
    """The flow of `readers/` in real time: `at_once` as it ships, else one invocation after the other."""

    machine: Machine
    slow: _Slow
    at_once: bool
    runs: int = 0

    def run(self) -> Taken:
        """One job."""
        self.runs += 1
        name = f"readers-{self.runs}"
        job = job_id("default", name, "")
        self.slow.calls.clear()
        sent = time.time()
        self.machine.client("sqs").send_message(
            QueueUrl=self.machine.queue_url("intake"),
            MessageBody=json.dumps({"request_id": name, "input": {"text": "What is owed?"}}),
            MessageGroupId="default",
        )
        if not self.at_once:
            self.machine.run_until_quiet()
        elif not self.machine.wait_until_quiet(_LONGEST):
            raise TimeoutError(f"{name} was not done after {_LONGEST:.0f} s")
        records = Records(self.machine)
        head = records.head(job)
        assert head["status"] == "done", head
        results = {item["sk"].split("#")[1]: item for item in _results(records, job)}
        began, ended = float(results["scatter"]["began"]), float(results["scatter:join"]["ended"])
        calls = tuple(sorted(self.slow.calls, key=lambda call: call.began))
        return Taken(
            gathering=ended - began,
            whole=float(head["moved"]) - sent,
            before=calls[0].began - began,
            between=calls[-1].began - max(call.ended for call in calls[:-1]),
            calls=calls,
        )


@contextmanager
def bench(*, at_once: bool) -> Iterator[Bench]:
    """The bench, warm: one job has run, so that nothing is loaded any more."""
    quiet()
    with ExitStack() as stack:
        stack.enter_context(patch.object(definition, "FOLDER", PLACE / "agents"))
        model = stack.enter_context(serve_model())
        access = {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
        machine = stack.enter_context(
            Machine(PLACE / "template.yaml", clock=RealClock(), model_access=access, keep=False)
        )
        if at_once:
            machine.start()
        found = Bench(machine, _Slow(model), at_once)
        found.run()
        yield found


def taken(runs: int, *, at_once: bool) -> list[Taken]:
    """So many jobs, one after the other."""
    with bench(at_once=at_once) as warm:
        return [warm.run() for _ in range(runs)]


def _agents() -> dict[str, definition.Agent]:
    return {name: definition.load(name) for name in SECONDS}


def _results(records: Records, job: str) -> list[dict[str, Any]]:
    return [item for item in records.partition(f"JOB#{job}") if item["sk"].startswith("RESULT#")]
