"""Plays a scenario on one machine, once undisturbed and then with faults, and says what each run came to.

The code is run as it ships. Faults come in at three places: the calls of botocore, the HTTP server of the model, and
the event source mappings. A run with a fault is taken up from what was stored just before the delivery that it
strikes, which is the same as running it from the start.
"""

import copy
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from moto.sqs.models import Message

from local.calls import Call, Phase
from local.clock import VirtualClock
from local.functions import Outcome
from local.invocation import Invocation
from local.machine import Machine, NotQuietError
from local.mappings import Mapping as Source
from local.model import HangUpError, OfflineModel, serve_model
from local.prove.faults import WITH_MESSAGES, Fault, Schedule
from local.prove.workers import Worker, interleave
from local.records import Ending, Records
from stafette.core import messages
from stafette.core.joins import ranges

START = 1_767_225_600.0  # the first of January 2026: a run does not depend on the day
_SILENT = {"POWERTOOLS_LOG_LEVEL": "CRITICAL", "POWERTOOLS_METRICS_DISABLED": "true"}
_LIMIT = 2_000


@dataclass(frozen=True)
class Scenario:
    """What is proved: requests, each with a `request_id` of its own, and what their jobs come to."""

    name: str
    requests: tuple[dict[str, Any], ...]

    def jobs(self) -> list[str]:
        """The ids of its jobs."""
        return [
            messages.job_id(each.get("tenant", "default"), each["request_id"], "")
            for each in self.requests
        ]


@dataclass
class Course:
    """What was seen of a run.

    Attributes:
        calls: calls that each function began, of AWS and of the model.
        taken: messages that each function was given, and `names` what they are called.
        served: model calls that were answered, which are those that are paid for.
        acted: how often the outside was asked to act: requests for each object that is no artifact.
        died, stalled: how often a worker did, by function.
        early: joins that were delivered before all of their parts had ended.
        played: the faults that came to pass; orders: what interleaved deliveries did.
        trace: the run, line by line.
    """

    calls: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    names: dict[str, Fault] = field(default_factory=dict)
    served: int = 0
    acted: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)
    stalled: Counter[str] = field(default_factory=Counter)
    early: list[str] = field(default_factory=list)
    played: list[Fault] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    stuck: str | None = None
    orders: list[str] = field(default_factory=list)


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
        recorded, settled: records of model calls, and those of them that say how it ended.
    """

    course: Course
    endings: Mapping[str, Ending | None]
    left: tuple[str, ...]
    dead: tuple[str, ...]
    told: Counter[str]
    recorded: int
    settled: int
    seconds: float


class Prover(Machine):
    """A machine for one scenario. `play` may be called any number of times after `open`."""

    def __init__(self, scenario: Scenario, model: OfflineModel, seed: int = 0) -> None:
        super().__init__(
            clock=VirtualClock(START),
            environment=_SILENT,
            model_access={"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"},
            keep=False,
        )
        self.scenario, self.model, self.seed = scenario, model, seed
        self.records = Records(self)
        self.course = Course()
        self.moments: list[Moment] = []
        self._recording = False
        self._pending: list[Fault] = []
        self._late: list[tuple[Source, Message]] = []
        self._stalled: list[Worker] = []
        self._current: Invocation | None = None
        self._numbers: dict[int, tuple[Invocation, int, str]] = {}
        self._threads_of: dict[str, Worker] = {}

    def __enter__(self) -> "Prover":
        super().__enter__()
        with self._stack.pop_all() as machine, ExitStack() as mine:
            mine.callback(self.on_call(self._see_call))
            mine.callback(self.model.observe(self._see_request))
            mine.push(machine.pop_all())
            self._stack = mine.pop_all()
        self._empty = self.backend.save()
        return self

    # --- playing ---------------------------------------------------------------------------------------------------

    def undisturbed(self) -> Result:
        """Runs the scenario with no fault, and keeps the moments from which runs with faults are taken up."""
        self.moments.clear()
        self.take_up(Moment(self._empty, START, 0, Course()))
        for request in self.scenario.requests:
            self.client("sqs").send_message(
                QueueUrl=self.queue_url("intake"),
                MessageBody=json.dumps(request),
                MessageGroupId=str(request.get("tenant", "default")),
            )
        self._recording = True
        try:
            return self.go_on(())
        finally:
            self._recording = False

    def play(self, schedule: Schedule) -> Result:
        """Runs the scenario with faults, from the last moment before all of them, until nothing moves."""
        self.take_up(self._before_all(schedule))
        return self.go_on(schedule)

    def cut_off(self, schedule: Schedule) -> None:
        """Runs the scenario with faults, until the last of them has come to pass."""
        self.take_up(self._before_all(schedule))
        self._pending = list(schedule)
        while self._pending:
            if self.step() is None:
                raise LookupError(f"the run never came to {self._pending[0]}")

    def _before_all(self, schedule: Schedule) -> Moment:
        if not schedule:
            return self.moments[0]
        *_, last = (
            moment
            for moment in self.moments
            if all(_count(moment.course, fault) < fault.number for fault in schedule)
        )
        return last

    def take_up(self, moment: Moment) -> None:
        """Makes everything as it was at a moment of the undisturbed run."""
        assert isinstance(self.clock, VirtualClock)
        self.backend.restore(moment.stored)
        self.clock.go_back_to(moment.now)
        self._turn = moment.turn
        self.course = copy.deepcopy(moment.course)
        self._late.clear()
        self._stalled.clear()
        self._threads_of.clear()
        self.outcomes.clear()
        random.seed(self.seed)

    def go_on(self, schedule: Schedule = ()) -> Result:
        """Runs on, with faults, until nothing moves."""
        began = time.perf_counter()
        self._pending = list(schedule)
        try:
            self.run_until_quiet(_LIMIT)
            while self._late or self._stalled:
                if self._late:
                    source, message = self._late.pop(0)
                    self._say(f"{self._name(source, message)} is delivered again")
                    super().deliver(source, [message])
                else:
                    worker = self._stalled.pop(0)
                    self._say("the worker that had stopped goes on")
                    worker.finish()
                self.run_until_quiet(_LIMIT)
        except NotQuietError as error:
            self.course.stuck = str(error)
        return self._read(time.perf_counter() - began)

    def _read(self, seconds: float) -> Result:
        look, jobs = self.records, self.scenario.jobs()
        told = Counter(json.loads(each["message"])["notice_id"] for each in self.published)
        stored = look.everything()
        keys = {(item["pk"], item["sk"]) for item in stored}
        calls = [item for item in stored if item["sk"].startswith("CALL#")]
        return Result(
            course=self.course,
            endings={
                job: look.ending(job) if (f"JOB#{job}", "JOB") in keys else None for job in jobs
            },
            left=tuple(
                f"{queue}: {message.body[:120]}"
                for queue, waiting in self.backlog().items()
                for message in waiting
            ),
            dead=tuple(
                f"{item['function']}: {item['reason']}" for item in stored if item["sk"] == "DEAD"
            ),
            told=told,
            recorded=len(calls),
            settled=sum(call["outcome"] != "begun" for call in calls),
            seconds=seconds,
        )

    # --- at the event source mappings ------------------------------------------------------------------------------

    def step(self) -> Outcome | None:
        """As the machine's; the undisturbed run keeps what is stored before each."""
        if self._recording:
            stored = self.backend.save()
            course = copy.deepcopy(self.course)
            self.moments.append(Moment(stored, self.clock.now(), self._turn, course))
        return super().step()

    def deliver(self, mapping: Source, batch: list[Message]) -> Outcome:
        """Delivers a batch, with the faults that are for its messages."""
        for message in batch:
            self._name(mapping, message)
        for place, message in enumerate(batch):
            if fault := self._due(WITH_MESSAGES, self._name(mapping, message)):
                if batch[:place]:
                    self._deliver(mapping, batch[:place])
                return self._oddly(fault, mapping, message, batch[place + 1 :])
        return self._deliver(mapping, batch)

    def _oddly(
        self, fault: Fault, mapping: Source, message: Message, rest: list[Message]
    ) -> Outcome:
        outcome: Outcome | None
        match fault.kind:
            case "twice":
                self._deliver(mapping, [message])
                outcome = self._deliver(mapping, [message])
            case "batch":
                outcome = self._deliver(mapping, [message, message])
            case "late":
                self._late.append((mapping, message))
                outcome = self._deliver(mapping, [message])
            case "meet":
                outcome = self._meet(fault, mapping, message)
            case _:
                return self._swap(mapping, message, rest)
        return self.deliver(mapping, rest) if rest else outcome

    def _swap(self, mapping: Source, message: Message, rest: list[Message]) -> Outcome:
        if rest:
            self._deliver(mapping, rest[:1])
            return self.deliver(mapping, [message, *rest[1:]])
        if super().step() is None:
            # Nothing else is there: the next message follows from this one, which is not acknowledged yet.
            self._takes(mapping, [message])
            self._invoke(mapping.function, mapping.event([message]))
            super().step()
        return self._deliver(mapping, [message])

    def _meet(self, fault: Fault, mapping: Source, message: Message) -> Outcome:
        outcomes: list[Outcome] = []

        def work() -> None:
            outcomes.append(super(Prover, self).deliver(mapping, [message]))

        self._takes(mapping, [message], " two at once:")
        order = interleave(Worker(work), Worker(work), fault.order)
        self.course.orders.append(order)
        self._say(f"  in the order {order}")
        return outcomes[-1]

    def _deliver(self, mapping: Source, batch: list[Message]) -> Outcome:
        self._takes(mapping, batch)
        if not any(
            f.kind == "stall" and f.function == mapping.function.name for f in self._pending
        ):
            return super().deliver(mapping, batch)
        outcomes: list[Outcome] = []
        worker = Worker(lambda: outcomes.append(super(Prover, self).deliver(mapping, batch)))
        worker.stops = False
        worker.step()
        if not worker.ended:
            self._stalled.append(worker)
        return outcomes[0] if outcomes else Outcome(mapping.function.name, "", None, "killed")

    def _name(self, mapping: Source, message: Message) -> Fault:
        """What a message is called: `message:act:1` is the first that act was given."""
        if message.id not in self.course.names:
            self.course.taken[mapping.function.name] += 1
            number = self.course.taken[mapping.function.name]
            self.course.names[message.id] = Fault("message", mapping.function.name, number)
        return self.course.names[message.id]

    def _takes(self, mapping: Source, batch: Iterable[Message], how: str = "") -> None:
        for message in batch:
            about = _about(message.body)
            again = message.approximate_receive_count
            told = f", delivery {again}" if again > 1 else ""
            if self._is_early(message.body):
                self.course.early.append(about)
            self._say(f"{self._name(mapping, message)}{how} {about}{told}")

    def _is_early(self, body: str) -> bool:
        """Whether a message is for a join whose parts have not all ended."""
        if '"kind":"handoff"' not in body or ':join"' not in body:
            return False
        message = json.loads(body)
        split, _, _ = message["handoff"].partition(":")
        head = self.records.head(message["job_id"])
        if head.get("handoff") != message["handoff"]:
            return False
        ended = sum(
            item["sk"].startswith("PART#") and not {"value", "ref", "reason"}.isdisjoint(item)
            for n in range(ranges(head["parts"]))
            for item in self.records.partition(f"JOB#{message['job_id']}#{split}#{n:03d}")
        )
        return ended < int(head["parts"])

    # --- at the calls ------------------------------------------------------------------------------------------------

    def _see_call(self, phase: Phase, call: Call) -> None:
        if phase == "before":
            self._before(call.invocation, f"{call.service} {call.operation} {_place(call)}".strip())
            return
        if call.operation == "PutObject" and not call.parameters["Key"].startswith("artifacts/"):
            self.course.acted[call.parameters["Key"]] += 1
        if self._after(call.error):
            call.invocation.die()

    def _see_request(self, phase: Literal["before", "after"], request: dict[str, Any]) -> None:
        # One thing runs at a time, and a function calls AWS before it asks the model: it is the one that did last.
        invocation = self._current
        assert invocation is not None
        if phase == "before":
            if invocation.gone:
                raise HangUpError
            try:
                self._before(invocation, f"model {request.get('model')}")
            except BaseException as gone:
                raise HangUpError from gone
            return
        self.course.served += 1
        if self._after(None):
            invocation.gone = True
            raise HangUpError

    def _before(self, invocation: Invocation, what: str) -> None:
        function = invocation.function.name
        worker = self._worker_of(invocation)
        if worker is not None and worker.stops:
            worker.stop_here()
        self.course.calls[function] += 1
        number = self.course.calls[function]
        self._say(f"  {function}:{number} {what}")
        if self._due(("stall",), Fault("", function, number)):
            assert worker is not None
            self._say("  it stops here")
            self.course.stalled[function] += 1
            worker.stop_here()
        self._current = invocation
        self._numbers[threading.get_ident()] = (invocation, number, function)
        if self._due(("die-before",), Fault("", function, number)):
            self._say("  it dies before that")
            self.course.died[function] += 1
            invocation.die()

    def _after(self, error: Exception | None) -> bool:
        """Whether the process dies here."""
        invocation, number, function = self._numbers[threading.get_ident()]
        self._current = invocation
        if error is not None:
            self.course.trace[-1] += f" -> {type(error).__name__}"
        if not self._due(("die-after",), Fault("", function, number)):
            return False
        self._say("  it dies after that")
        self.course.died[function] += 1
        return True

    def _worker_of(self, invocation: Invocation) -> Worker | None:
        thread = threading.current_thread()
        if isinstance(thread, Worker):
            self._threads_of[invocation.request_id] = thread
        return self._threads_of.get(invocation.request_id)

    # --- shared ------------------------------------------------------------------------------------------------------

    def _due(self, kinds: tuple[str, ...], place: Fault) -> Fault | None:
        """The fault of one of these kinds that is due at a place, which is then played."""
        for fault in self._pending:
            if fault.kind in kinds and (fault.function, fault.number) == (
                place.function,
                place.number,
            ):
                self._pending.remove(fault)
                self.course.played.append(fault)
                return fault
        return None

    def _say(self, line: str) -> None:
        self.course.trace.append(line)


@contextmanager
def proving(scenario: Scenario, seed: int = 0) -> Iterator[Prover]:
    """A prover, for as long as the context is open."""
    with serve_model() as model, Prover(scenario, model, seed) as prover:
        yield prover


def _count(course: Course, fault: Fault) -> int:
    counts = course.taken if fault.kind in WITH_MESSAGES else course.calls
    return counts[fault.function]


def _about(body: str) -> str:
    try:
        value = json.loads(body)
    except ValueError:
        return body[:40]
    names = ("kind", "handoff", "stage", "range_no", "index", "event", "request_id", "wake")
    return " ".join(str(value[name]) for name in names if value.get(name) not in (None, "", 0))


def _place(call: Call) -> str:
    given = call.parameters
    item = given.get("Key") or given.get("Item")
    if isinstance(item, dict):
        return str(item["sk"]["S"])
    if isinstance(item, str):
        return item
    return str(given.get("QueueUrl", given.get("TopicArn", ""))).rpartition("/")[2]
