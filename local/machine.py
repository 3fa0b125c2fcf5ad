"""One machine: the stack of a template on moto, its event source mappings and schedules played.

It is driven in one of two ways. `step`, `run_until_quiet` and `run_for` deliver one batch after the other in this
thread, always in the same order, and move the clock where there is nothing to do but wait. `start` and `stop` run it
with threads in real time.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from moto.sqs.models import Message

from local import mappings, resources
from local.backend import Backend, Waiting
from local.calls import Call, Calls, Observer
from local.clock import Clock, RealClock, VirtualClock
from local.functions import Functions, LambdaContext, Outcome
from local.invocation import environments_apart
from local.processes import Processes
from local.template import ACCOUNT, REGION, Function, Queue, Schedule, Template, load
from local.threads import Threads
from stafette import clock as library_clock
from stafette.aws import clients

TEMPLATE = Path(__file__).resolve().parent.parent / "template.yaml"
_ONE = threading.Lock()
# The caller's own AWS settings must not be reached from here, not even by mistake.
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_SESSION_TOKEN": "local",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_PROFILE": None,
    "AWS_ENDPOINT_URL": None,
}


class NotQuietError(AssertionError):
    """The machine did not come to rest; the text lists what is left, queue by queue."""


class Machine:
    """A context manager. One at a time in a process: it takes the place of AWS for all of it.

    Args:
        template: path of a template; None is the project's own. Code is looked for beside it.
        environment: variables that every function sees besides its own, and instead of its own.
        clock: None is a VirtualClock that starts now.
        parameters: values for the template's parameters.
        model_access: MODEL_BASE_URL, ANTHROPIC_API_KEY and the like, for the functions that ask a model.
        shuffle: reorders a list in place, such as `random.Random(7).shuffle`. It is given the mappings before each
            step and the messages of a standard queue before each receive: neither has an order on AWS.
        keep: whether all calls and outcomes are kept; else only counts and the last hundred outcomes.
    """

    def __init__(
        self,
        template: Path | str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        parameters: Mapping[str, Any] | None = None,
        model_access: Mapping[str, str] | None = None,
        shuffle: Callable[[list[Any]], None] | None = None,
        keep: bool = True,
    ) -> None:
        self.template: Template = load(Path(template or TEMPLATE), parameters)
        self.clock: Clock = clock or VirtualClock()
        self.backend = Backend(self.clock)
        self.functions = Functions(self.clock, model_access or {}, environment or {})
        self.shuffle = shuffle
        self.outcomes: deque[Outcome] = deque(maxlen=None if keep else 100)
        self.mappings = [
            mappings.Mapping(
                source,
                self.template.functions[source.function],
                self.template.queues[source.queue],
                self.backend,
            )
            for source in self.template.sources
        ]
        self.due: dict[str, float] = {}
        self.processes: Processes | None = None  # where functions run, if not in this one
        self._calls = Calls(keep)
        self._turn = 0
        self._threads: Threads | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Machine":
        if not _ONE.acquire(blocking=False):
            raise RuntimeError("another machine is running in this process")
        with ExitStack() as stack:
            stack.callback(_ONE.release)
            stack.enter_context(_environment(_ENVIRONMENT))
            stack.enter_context(_search_path(self.template.layers))
            stack.enter_context(environments_apart())
            stack.callback(library_clock.use)
            library_clock.use(self.clock.now, self.clock.sleep)
            stack.enter_context(self.backend.running())
            stack.enter_context(patch("boto3.DEFAULT_SESSION", resources.session()))
            clients.forget()
            stack.callback(clients.forget)
            stack.callback(_hang_up)
            stack.enter_context(self._calls.watching())
            stack.callback(self.functions.unload)
            resources.create(self.template)
            now = self.clock.now()
            self.due = {schedule.name: now + schedule.every for schedule in self.template.schedules}
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- looking ---------------------------------------------------------------------------------------------------

    def function(self, name: str) -> Function:
        """A function by its logical id, its folder's name or its name in AWS."""
        for function in self.template.functions.values():
            if name in (function.logical_id, function.name, function.physical):
                return function
        raise KeyError(f"no function {name}: there are {', '.join(self.template.functions)}")

    def queue(self, name: str) -> Queue:
        """A queue by its logical id, its name in AWS, or the function that consumes it."""
        for queue in self.template.queues.values():
            if name in (queue.logical_id, queue.name):
                return queue
        for mapping in self.mappings:
            if name in (mapping.function.logical_id, mapping.function.name):
                return mapping.queue
        raise KeyError(f"no queue {name}: there are {', '.join(self.template.queues)}")

    def queue_url(self, name: str) -> str:
        """URL of a queue, named as for `queue`."""
        return self.queue(name).url

    @property
    def outputs(self) -> Mapping[str, str]:
        """The template's outputs."""
        return self.template.outputs

    @property
    def table(self) -> str:
        """Name of the first table, which is the one table of a stack of this pattern."""
        return next(iter(self.template.tables.values())).name

    @property
    def bucket(self) -> str:
        """Name of the first bucket."""
        return next(iter(self.template.buckets.values())).name

    def client(self, service: str) -> Any:
        """A boto3 client whose calls are nobody's: not counted, not stopped."""
        return resources.client(service)

    @property
    def calls(self) -> list[Call]:
        """Every AWS call that functions made, in order."""
        return self._calls.made

    @property
    def call_counts(self) -> dict[tuple[str, str, str], int]:
        """How often each (function, service, operation) was called."""
        return dict(self._calls.counts)

    def on_call(self, observer: Observer) -> Callable[[], None]:
        """Shows each call of a function before and after to `observer`, which may raise. Returns its removal."""
        return self._calls.observe(observer)

    @property
    def published(self) -> list[dict[str, Any]]:
        """What the topics were given, in order: topic, message_id, subject, message, attributes."""
        return [asdict(each) for each in resources.published(self.template, self.backend)]

    @property
    def crashes(self) -> list[Outcome]:
        """The invocations that took their process with them: nothing was acknowledged."""
        return [outcome for outcome in self.outcomes if outcome.kind == "killed"]

    @property
    def failures(self) -> list[Outcome]:
        """The invocations that raised, or ran out of time."""
        return [outcome for outcome in self.outcomes if outcome.kind == "failed"]

    def backlog(self) -> dict[str, list[Waiting]]:
        """What is on which queue, for those that are not empty."""
        found = {key: self.backend.waiting(queue) for key, queue in self.template.queues.items()}
        return {key: waiting for key, waiting in found.items() if waiting}

    # --- acting ----------------------------------------------------------------------------------------------------

    def invoke(self, function: str, event: Any) -> Any:
        """Invokes a function directly and gives its answer; what it raises is raised."""
        outcome = self._invoke(self.function(function), event)
        if outcome.error is not None:
            raise outcome.error
        return outcome.response

    @contextmanager
    def inside(self, function: str) -> Iterator[LambdaContext]:
        """Lets the caller's code run as a function, with its environment, its calls counted and observed."""
        with self.functions.inside(self.function(function)) as (_, context):
            yield context

    def deliver(self, mapping: mappings.Mapping, batch: list[Message]) -> Outcome:
        """Invokes a mapping's function with a batch, and acknowledges by its answer."""
        outcome = self._invoke(mapping.function, mapping.event(batch))
        mapping.acknowledge(batch, outcome)
        return outcome

    def run_schedule(self, schedule: Schedule) -> Outcome:
        """Runs a schedule now, and sets when it is due next. Times that were missed are not made up for."""
        now = self.clock.now()
        missed = max(0.0, now - self.due[schedule.name]) // schedule.every
        self.due[schedule.name] += (missed + 1) * schedule.every
        event = {
            "version": "0",
            "id": str(uuid4()),
            "detail-type": "Scheduled Event",
            "source": schedule.source,
            "account": ACCOUNT,
            "time": f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "region": REGION,
            "resources": [schedule.arn],
            "detail": {},
        }
        return self._invoke(self.template.functions[schedule.function], event)

    def _invoke(self, function: Function, event: Any) -> Outcome:
        outcome = (self.processes or self.functions).invoke(function, event)
        self.outcomes.append(outcome)
        return outcome

    # --- driving, one thing after the other --------------------------------------------------------------------------

    def step(self) -> Outcome | None:
        """Delivers one batch, from the first mapping in turn that has one. None: nothing is deliverable now."""
        # First everywhere, so that a message which moves to a dead-letter queue is not moved behind the one who looks.
        for mapping in self.mappings:
            self.backend.settle(mapping.queue)
        turn = self.mappings[self._turn :] + self.mappings[: self._turn]
        if self.shuffle:
            self.shuffle(turn)
        for mapping in turn:
            if self.shuffle:
                self.backend.reorder(mapping.queue, self.shuffle)
            if batch := mapping.take():
                self._turn = (self.mappings.index(mapping) + 1) % len(self.mappings)
                return self.deliver(mapping, batch)
        return None

    def run_until_quiet(self, limit: int = 2_000, *, sweep: bool = False) -> list[Outcome]:
        """Runs until every queue that has a consumer is empty, moving the clock over the waits.

        Args:
            limit: invocations and moves of the clock after which it is an error.
            sweep: whether schedules run when they are due meanwhile, and once more when all is quiet, until that
                leaves all quiet.

        Raises:
            NotQuietError: the limit was reached, or something is left that will never be deliverable.
        """
        ran = self._drive(None, limit, sweep)
        while sweep:
            ran += self.run_schedules()
            if self.is_quiet():
                break
            ran += self._drive(None, limit - len(ran), sweep)
        return ran

    def run_schedules(self) -> list[Outcome]:
        """Runs every schedule now, due or not."""
        return [self.run_schedule(schedule) for schedule in self.template.schedules]

    def run_for(
        self, seconds: float, limit: int = 20_000, *, schedules: bool = True
    ) -> list[Outcome]:
        """Runs everything that is due within the next `seconds`; then it is that much later."""
        return self._drive(self.clock.now() + seconds, limit, schedules)

    def _drive(self, until: float | None, limit: int, schedules: bool) -> list[Outcome]:
        ran: list[Outcome] = []
        for _ in range(limit):
            if outcome := self._next(schedules):
                ran.append(outcome)
                continue
            moment = self._next_moment(schedules)
            if until is None and self.is_quiet():
                return ran
            if until is not None and (moment is None or moment > until):
                self.clock.advance_to(until)
                return ran
            if moment is None:
                break
            self.clock.advance_to(moment)
        raise NotQuietError(self._describe_backlog(len(ran)))

    def _next(self, schedules: bool) -> Outcome | None:
        if schedules:
            for schedule in self.template.schedules:
                if self.due[schedule.name] <= self.clock.now():
                    return self.run_schedule(schedule)
        return self.step()

    def _next_moment(self, schedules: bool) -> float | None:
        moments = [mapping.next_moment() for mapping in self.mappings]
        if schedules:
            moments += self.due.values()
        return min((moment for moment in moments if moment is not None), default=None)

    def is_quiet(self) -> bool:
        """Whether every queue that has a consumer is empty, and no batch is being worked on."""
        return not any(
            mapping.busy or self.backend.count(mapping.queue) for mapping in self.mappings
        )

    def _describe_backlog(self, invocations: int) -> str:
        now = self.clock.now()
        lines = [f"not quiet after {invocations} invocations; left are:"]
        for name, waiting in self.backlog().items():
            for message in waiting:
                when = "" if message.state == "visible" else f" for {message.until - now:.0f} s"
                about = f"{message.state}{when}, received {message.received} times"
                lines.append(f"  {name}: {message.message_id} {about}: {message.body[:200]}")
        if failed := [outcome for outcome in self.outcomes if outcome.error is not None]:
            lines.append(f"the last error was in {failed[-1].function}:\n{failed[-1].trace}")
        return "\n".join(lines)

    # --- driving, with threads ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts pollers, workers and schedules. The clock must be a real one."""
        if not isinstance(self.clock, RealClock):
            raise ValueError("threads need a RealClock: a VirtualClock stands still")
        # boto3 must not make clients in two threads at once.
        for make in (clients.dynamodb, clients.sqs, clients.s3, clients.sns):
            make()
        self._threads = Threads(self)
        self._threads.start()

    def stop(self) -> None:
        """Ends what `start` began; batches under way are finished."""
        if self._threads:
            self._threads.stop()
            self._threads = None

    def wait_until_quiet(self, timeout: float) -> bool:
        """Waits, with threads running, until `is_quiet`; False if it was not within `timeout` seconds."""
        with self.backend.changed:
            return self.backend.changed.wait_for(self.is_quiet, timeout)


def _hang_up() -> None:
    """Closes the connections to a model, if anything here has asked one."""
    if model := sys.modules.get("stafette.agent.model"):
        model.forget()


@contextmanager
def _environment(wanted: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(wanted: Mapping[str, str | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _search_path(layers: tuple[Path, ...]) -> Iterator[None]:
    added = [str(layer) for layer in layers if str(layer) not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for place in added:
            sys.path.remove(place)
