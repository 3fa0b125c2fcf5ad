"""A fan-out at size, on the flow of `wide/`: what a part costs, and that everything that goes wrong changes nothing.

A run is undisturbed, or disturbed in every way at once: parts fail, fail at first, die with their worker, come twice,
come when all is over, come in any order; ranges come twice, and are buried before or while their parts are worked.
When every part has ended, the join is judged by each policy, over the same parts.
"""

import gc
import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

from moto.core.models import botocore_stubber
from moto.sqs.models import Message

from local.calls import Call, Phase
from local.clock import VirtualClock
from local.functions import Outcome
from local.invocation import ProcessGone
from local.machine import Machine
from local.mappings import Mapping
from local.prove.runner import quiet
from local.records import Ending, Records
from stafette.core.errors import PermanentError, TransientError
from stafette.core.joins import members, range_of, ranges
from stafette.core.messages import job_id
from tests.bench.wide.outside import use
from tests.support import Ledger

TEMPLATE = Path(__file__).parent / "wide" / "template.yaml"
JOB = job_id("default", "wide", "")
# Every n-th invocation that works parts is watched for its memory, which slows it down.
_WATCHED = 100


@dataclass(frozen=True)
class Report:
    """What a run came to. By what an invocation did, `memory` is the most that one took, in KB, `calls` the most AWS
    calls that one made, and `longest` in seconds, of those whose memory was not watched; `policies` says how each
    went, with what it should have been."""

    parts: int
    seed: int | None
    seconds: float
    writes: int
    reads: int
    sends: int
    failed: int
    joins: int
    faults: Counter[str]
    memory: dict[str, float]
    calls: dict[str, int]
    longest: dict[str, float]
    limit: float
    policies: tuple[tuple[str, str, str], ...]
    wrong: tuple[str, ...]


@dataclass
class Meter:
    """Time of the invocations, and memory of some: what moto takes and keeps in the same process is not counted."""

    memory: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    longest: dict[str, float] = field(default_factory=dict)
    _made: int = 0
    _seen: Counter[str] = field(default_factory=Counter)
    _peak: int = 0
    _of_moto: int = 0

    def run(self, what: str, invoke: Callable[[], Outcome]) -> Outcome:
        """Runs an invocation; one of its kind in a hundred is watched for its memory, of those that come once that."""
        first = 2 if what in ("work", "range", "bury") else 1  # the first one loads modules
        self._seen[what] += 1
        self._made, watched = 0, self._seen[what] % _WATCHED == first
        began = time.perf_counter()
        outcome = self._watch(what, invoke) if watched else invoke()
        took = time.perf_counter() - began
        self.calls[what] = max(self._made, self.calls.get(what, 0))
        if not watched:
            self.longest[what] = max(took, self.longest.get(what, 0.0))
        return outcome

    def on_call(self, phase: Phase, call: Call) -> None:
        """Counts the calls of the invocation that is running."""
        self._made += phase == "before"

    def _watch(self, what: str, invoke: Callable[[], Outcome]) -> Outcome:
        self._peak = self._of_moto = 0
        process = botocore_stubber.process_request
        tracemalloc.start()

        def apart(request: Any) -> Any:
            self._look()
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            answer = process(request)
            gc.collect()  # what moto has done with is not kept
            kept = tracemalloc.get_traced_memory()[0] - before
            self._of_moto += kept - (len(answer[2]) if answer else 0)  # status, headers, body
            tracemalloc.reset_peak()
            return answer

        try:
            with patch.object(botocore_stubber, "process_request", apart):
                return invoke()
        finally:
            self._look()
            tracemalloc.stop()
            self.memory[what] = max(self._peak / 1024, self.memory.get(what, 0.0))

    def _look(self) -> None:
        self._peak = max(self._peak, tracemalloc.get_traced_memory()[1] - self._of_moto)


class Bench(Machine):
    """The machine of `wide/`, with a meter at its deliveries."""

    def __init__(self, shuffle: Callable[[list[Any]], None]) -> None:
        super().__init__(
            TEMPLATE,
            environment={"POLICY": json.dumps({"rule": "at_least"})},
            clock=VirtualClock(),
            shuffle=shuffle,
            keep=False,
        )
        self.meter = Meter()

    def deliver(self, mapping: Mapping, batch: list[Message]) -> Outcome:
        what = mapping.function.name
        if what == "split":
            what = "join" if '"split:join"' in batch[0].body else "split"
        elif what == "work" and any(_kind(message.body) == "range" for message in batch):
            what = "range"
        return self.meter.run(what, lambda: super(Bench, self).deliver(mapping, batch))

    def send(self, queue: str, *bodies: str) -> None:
        url = self.queue_url(queue)
        for body in bodies:
            self.client("sqs").send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")


class Disturbance:
    """Everything that goes wrong, drawn from a seed. `seen` counts it."""

    def __init__(self, machine: Bench, parts: int, chance: random.Random) -> None:
        self.seen: Counter[str] = Counter()
        self.late: list[str] = []
        self.buried: set[int] = set()
        self._machine, self._parts, self._chance = machine, parts, chance
        self._once: set[int] = set()
        self._dying: dict[str, int] = {}

    def answer(self, n: int) -> int:
        """What the outside says: one part in a hundred fails, another one at first."""
        if self.fails(n):
            self.seen["parts that fail"] += n not in self._once
            self._once.add(n)
            raise PermanentError("no such number", reason="unknown_number")
        if n % 100 == 57 and n not in self._once:
            self._once.add(n)
            self.seen["parts that fail at first"] += 1
            raise TransientError("come back later", reason="busy")
        return n * n

    @staticmethod
    def fails(n: int) -> bool:
        return n % 100 == 7

    def on_call(self, phase: Phase, call: Call) -> None:
        """Messages come twice, or late, or are buried; workers die."""
        if phase == "before" and call.operation == "SendMessageBatch":
            self._bury(call)
        if phase == "after" and call.operation == "SendMessageBatch":
            for entry in call.parameters["Entries"]:
                self._repeat(entry["MessageBody"])
        if call.function == "work":
            self._die(call)

    def _bury(self, call: Call) -> None:
        left = []
        for entry in call.parameters["Entries"]:
            body = entry["MessageBody"]
            draw = self._chance.random() if _kind(body) == "range" else 1.0
            last = entry is call.parameters["Entries"][-1] and not left
            if draw < 0.05 and not last:
                self.seen["ranges buried, never handed out"] += 1
            else:
                left.append(entry)
            if draw < 0.1:
                self.seen["ranges buried while their parts are worked"] += draw >= 0.05
                self.buried.add(json.loads(body)["range_no"])
                self._machine.send("bury", body)
        call.parameters["Entries"] = left

    def _repeat(self, body: str) -> None:
        what = _kind(body)
        if self._chance.random() < (0.1 if what == "range" else 0.03):
            self.seen[f"{what}s that come twice"] += 1
            self._machine.send("work", body)
        if self._chance.random() < 0.01:
            self.seen["messages that come when all is over"] += 1
            self.late.append(body)

    def _die(self, call: Call) -> None:
        """One invocation in fifty dies at one of its first calls."""
        left = self._dying.setdefault(call.request_id, self._chance.randrange(1_000))
        self._dying[call.request_id] = left - 1
        if left < 20 and left == 0:
            self.seen["workers that die"] += 1
            raise ProcessGone

    def shuffle(self, found: list[Any]) -> None:
        """Any order."""
        self._chance.shuffle(found)


def run(parts: int, seed: int | None = None, policies: bool = True) -> Report:
    """Runs a fan-out of so many parts: undisturbed, or with a seed for everything that goes wrong."""
    began = time.perf_counter()
    disturbance: Disturbance | None = None

    def shuffle(found: list[Any]) -> None:
        if disturbance:
            disturbance.shuffle(found)
        if found and isinstance(found[0], Message):
            # What is handed out is worked first: moto takes its time when much is in flight.
            found.sort(key=lambda message: _kind(message.body) == "range")

    with _quiet(), Bench(shuffle) as machine:
        records = Records(machine)
        ledger = Ledger(records)
        machine.on_call(ledger.observe)
        machine.on_call(machine.meter.on_call)
        if seed is not None:
            disturbance = Disturbance(machine, parts, random.Random(seed))
            machine.on_call(disturbance.on_call)
            use(disturbance.answer)
        machine.send("intake", json.dumps({"request_id": "wide", "input": {"parts": parts}}))
        split = next(m for m in machine.mappings if m.function.name == "split")
        for _ in range(20):
            if records.item(f"JOB#{JOB}", "JOB") and _stage(records) != "asked":
                break
            machine.step()
        machine.mappings.remove(split)  # the join has to wait
        machine.run_until_quiet(limit=100 * parts + 1_000)
        judged: list[tuple[str, str, str]] = []
        wrong: list[str] = []
        before = records.ending(JOB)
        if disturbance:
            machine.send("work", *disturbance.late)
            machine.run_until_quiet(limit=100 * parts + 1_000)
            if records.ending(JOB) != before:
                wrong.append("what came when all parts had ended changed something")
        failed = sum(isinstance(value, str) and value[0] != "{" for value in before.parts.values())
        machine.mappings.append(split)
        if policies:
            for name, policy, holds in _policies(parts, failed):
                judged.append((name, _judge(machine, records, policy), "done" if holds else FAILED))
        machine.run_until_quiet()
        if disturbance:
            machine.send("work", *disturbance.late)
            machine.run_until_quiet(limit=100 * parts + 1_000)
        ending = records.ending(JOB)
        wrong += _checked(ending, parts, failed, disturbance)
        wrong += [f"{n}: {was}, not {should}" for n, was, should in judged if was != should]
        if sum(each["event"] == "ended" for each in map(_notice, machine.published)) != 1:
            wrong.append("not told once that it ended")
        return Report(
            parts=parts,
            seed=seed,
            seconds=time.perf_counter() - began,
            writes=ledger.of("work").writes,
            reads=ledger.of("work").reads,
            sends=ledger.of("work").sends,
            failed=failed,
            joins=sum(
                item["sk"].startswith("RESULT#split:join#")
                for item in records.partition(f"JOB#{JOB}")
            ),
            faults=disturbance.seen if disturbance else Counter(),
            memory=machine.meter.memory,
            calls=machine.meter.calls,
            longest=machine.meter.longest,
            limit=float(machine.function("work").timeout),
            policies=tuple(judged),
            wrong=tuple(wrong),
        )


FAILED = "failed: join_policy"


def _policies(parts: int, failed: int) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each kind, where it just holds and where it just does not."""
    done = parts - failed
    yield "all", {"rule": "all"}, failed == 0
    yield f"all, {failed} tolerated", {"rule": "all", "tolerate": failed}, True
    if failed:
        yield f"all, {failed - 1} tolerated", {"rule": "all", "tolerate": failed - 1}, False
    yield "any", {"rule": "any"}, done > 0
    yield f"at least {done}", {"rule": "at_least", "n": done}, True
    yield f"at least {done + 1}", {"rule": "at_least", "n": done + 1}, False


def _judge(machine: Bench, records: Records, policy: dict[str, Any]) -> str:
    """Runs the join under a policy; then all is as it was before."""
    saved, now = machine.backend.save(), machine.clock.now()
    usual = machine.functions.environment["POLICY"]
    machine.functions.environment["POLICY"] = json.dumps(policy)
    machine.functions.unload()
    try:
        machine.run_until_quiet()
        head = records.head(JOB)
        return f"{head['status']}: {head['reason']}" if "reason" in head else str(head["status"])
    finally:
        machine.functions.environment["POLICY"] = usual
        machine.functions.unload()
        machine.backend.restore(saved)
        machine.clock.go_back_to(now)  # type: ignore[attr-defined]


def _checked(
    ending: Ending, parts: int, failed: int, disturbance: Disturbance | None
) -> Iterator[str]:
    """What is wrong with where the job ended."""
    if (ending.stage, ending.status) != ("summed", "done"):
        yield f"it is {ending.stage}, {ending.status}: {ending.reason}"
        return
    names = [f"split:{n:05d}" for n in range(parts)]
    if sorted(ending.parts) != names or None in ending.parts.values():
        yield "a part is missing"
    digest = sha256()
    for n, name in enumerate(names):
        value = ending.parts[name]
        square = json.loads(value)["square"] if value.startswith("{") else None
        digest.update(f"{n}:{square};".encode())
        if square not in (None, n * n):
            yield f"part {n} has the value of another"
        fails = disturbance is not None and disturbance.fails(n)
        if fails and square is not None:
            yield f"part {n} failed and has a value"
        if square is None and not fails and not _buried(n, disturbance):
            yield f"part {n} failed, and nothing was wrong with it: {value}"
    summed = json.loads(ending.results["split:join"])
    if summed != {"total": parts, "failed": failed, "digest": digest.hexdigest()}:
        yield f"the join saw {summed}"
    if ending.joins["split"] != (ranges(parts), failed, tuple(range(ranges(parts)))):
        yield "the top of the join counts otherwise"
    for n in range(ranges(parts)):
        counted = ending.joins[f"split#{n:03d}"]
        if (counted[0], counted[2]) != (len(members(n, parts)), tuple(members(n, parts))):
            yield f"range {n} counts {counted[0]}"


def _buried(n: int, disturbance: Disturbance | None) -> bool:
    return disturbance is not None and range_of(n) in disturbance.buried


def _stage(records: Records) -> str:
    return str(records.head(JOB)["stage"])


def _kind(body: str) -> str:
    return "range" if '"kind":"range"' in body else "part"


def _notice(published: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(published["message"])
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    quiet()
    try:
        yield
    finally:
        use()
