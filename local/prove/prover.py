"""Plays a scenario on one machine, once undisturbed and then with faults, and says what each run came to.

The code is run as it ships. Faults come in at the calls of botocore and the HTTP server of the model (calls.py), and
at the event source mappings (here). A run with a fault is taken up from what was stored just before the delivery that
it strikes, which is the same as running it from the start.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from moto.sqs.models import Message

from local.clock import VirtualClock
from local.functions import Outcome
from local.machine import Machine, NotQuietError
from local.mappings import Mapping as Source
from local.model import OfflineModel, serve_model
from local.prove.bill import bill
from local.prove.calls import AtCalls
from local.prove.course import START, Course, Moment, Result, Scenario
from local.prove.faults import WITH_MESSAGES, Fault, Schedule
from local.prove.workers import Worker, interleave
from local.records import Records
from stafette.core.joins import ranges

_SILENT = {"POWERTOOLS_LOG_LEVEL": "CRITICAL", "POWERTOOLS_METRICS_DISABLED": "true"}
# Every guard of a model call is on, and as tight as a run that nothing disturbs can have it.
_GUARDS = {"ModelConcurrent": 1, "TenantBudgetUsd": 100}
_LIMIT = 2_000


class Prover(Machine):
    """A machine for one scenario. `play` may be called any number of times after `open`."""

    def __init__(self, scenario: Scenario, model: OfflineModel, seed: int = 0) -> None:
        super().__init__(
            clock=VirtualClock(START),
            environment=_SILENT,
            parameters=_GUARDS,
            model_access={"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"},
            keep=False,
        )
        self.scenario, self.model, self.seed = scenario, model, seed
        self.records = Records(self)
        self.course = Course()
        self.moments: list[Moment] = []
        self._recording = False
        self._late: list[tuple[Source, Message]] = []
        self._stalled: list[Worker] = []
        self._at_calls = AtCalls(self.backend, model)

    def __enter__(self) -> "Prover":
        super().__enter__()
        with self._stack.pop_all() as machine, ExitStack() as mine:
            mine.enter_context(self._at_calls.watching(self.on_call))
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
        self.course.pending = list(schedule)
        while self.course.pending:
            if self.step() is None:
                raise LookupError(f"the run never came to {self.course.pending[0]}")

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
        self._at_calls.begin(self.course)
        self.outcomes.clear()
        random.seed(self.seed)

    def go_on(self, schedule: Schedule = ()) -> Result:
        """Runs on, with faults, until nothing moves."""
        self.course.pending = list(schedule)
        try:
            self.run_until_quiet(_LIMIT)
            while self._late or self._stalled:
                if self._late:
                    source, message = self._late.pop(0)
                    self.course.say(f"{self._name(source, message)} is delivered again")
                    super().deliver(source, [message])
                else:
                    worker = self._stalled.pop(0)
                    self.course.say("the worker that had stopped goes on")
                    worker.finish()
                self.run_until_quiet(_LIMIT)
        except NotQuietError as error:
            self.course.stuck = str(error)
        return self._read()

    def _read(self) -> Result:
        look, jobs = self.records, self.scenario.jobs()
        told = Counter(json.loads(each["message"])["notice_id"] for each in self.published)
        stored = look.everything()
        keys = {(item["pk"], item["sk"]) for item in stored}
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
            bill=bill(stored, jobs),
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
            if fault := self._due(self._name(mapping, message)):
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
        self.course.say(f"  in the order {order}")
        return outcomes[-1]

    def _deliver(self, mapping: Source, batch: list[Message]) -> Outcome:
        self._takes(mapping, batch)
        if not any(
            f.kind == "stall" and f.function == mapping.function.name for f in self.course.pending
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

    def _due(self, name: Fault) -> Fault | None:
        return self.course.due(WITH_MESSAGES, name.function, name.number)

    def _takes(self, mapping: Source, batch: Iterable[Message], how: str = "") -> None:
        for message in batch:
            about = _about(message.body)
            again = message.approximate_receive_count
            told = f", delivery {again}" if again > 1 else ""
            if self._is_early(message.body):
                self.course.early.append(about)
            self.course.say(f"{self._name(mapping, message)}{how} {about}{told}")

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
