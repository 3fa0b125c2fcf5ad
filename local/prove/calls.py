"""What befalls the calls of a run, of AWS and of the model: they are numbered and told, and the faults due at them
come to pass.

A process dies, or stops for a while, at botocore's call of an operation. Answers are lost and refused below that, where
botocore sends a request, so that its own repetitions are played as well.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import ReadTimeoutError

from local.backend import Answer, Backend, Process
from local.calls import Call, Observer, Phase
from local.invocation import Invocation, running
from local.model import HangUpError, OfflineModel, error
from local.prove.course import Course
from local.prove.workers import Worker

# What a service that is too busy answers: status and body, by the errors of its API.
_BUSY: dict[str, tuple[int, str]] = {
    "dynamodb": (400, '{"__type": "ThrottlingException"}'),
    "sqs": (400, '{"__type": "RequestThrottled"}'),
    "s3": (503, "<Error><Code>SlowDown</Code></Error>"),
    "sns": (429, "<ErrorResponse><Error><Code>Throttled</Code></Error></ErrorResponse>"),
}
_STRIKES = ("throttle", "lose", "lose-all", "part")


@dataclass
class _Made:
    """A call that is being made: how often it was sent, and the fault that it meets."""

    invocation: Invocation
    number: int
    what: str  # the service, or `model`
    strike: str | None = None
    sent: int = 0
    refused: tuple[dict[str, Any], ...] = ()  # entries of a batch

    @property
    def function(self) -> str:
        return self.invocation.function.name


class AtCalls:
    """Watches the calls of one machine and its model."""

    def __init__(self, backend: Backend, model: OfflineModel) -> None:
        self.course = Course()
        self._backend, self._model = backend, model
        self._current: Invocation | None = None
        self._made: dict[int, _Made] = {}
        self._workers: dict[str, Worker] = {}

    def begin(self, course: Course) -> None:
        """From now on all that is seen belongs to this run."""
        self.course = course
        self._workers.clear()
        self._made.clear()

    @contextmanager
    def watching(self, on_call: Callable[[Observer], Callable[[], None]]) -> Iterator[None]:
        """Sees every call while it is open."""
        ends = (on_call(self._see_call), self._model.observe(self._see_request))
        self._backend.between = self._between
        try:
            yield
        finally:
            self._backend.between = None
            for end in ends:
                end()

    # --- calls of AWS ------------------------------------------------------------------------------------------------

    def _see_call(self, phase: Phase, call: Call) -> None:
        if phase == "before":
            made = self._before(call.invocation, call.service, f"{call.operation} {_place(call)}")
            entries = call.parameters.get("Entries", ())
            if call.operation == "SendMessageBatch":
                self.course.batches.append((made.function, made.number))
                if made.strike == "part":
                    made.refused = tuple(entries[1:])
                    call.parameters["Entries"] = entries[:1]
            return
        made = self._made[threading.get_ident()]
        if made.refused:
            call.response["Failed"] = [
                {"Id": each["Id"], "Code": "InternalError", "SenderFault": False}
                for each in made.refused
            ]
        if call.operation == "PutObject" and made.strike != "throttle":
            key = call.parameters["Key"]
            self.course.acted[key] += not key.startswith("artifacts/")
        if self._after(call.error):
            call.invocation.die()

    def _between(self, process: Process, request: Any) -> Answer:
        """Answers a request in the place of moto, or after it."""
        made = self._made.get(threading.get_ident()) if running.get() else None
        if made is None:
            return process(request)
        made.sent += 1
        if made.strike == "throttle":
            status, body = _BUSY[made.what]
            return status, {}, body
        answer = process(request)
        if made.strike == "lose-all" or (made.strike == "lose" and made.sent == 1):
            raise ReadTimeoutError(endpoint_url=request.url)
        return answer

    # --- calls of the model ------------------------------------------------------------------------------------------

    def _see_request(self, phase: Literal["before", "after"], request: dict[str, Any]) -> None:
        # One thing runs at a time, and a function calls AWS before it asks the model: it is the one that did last.
        invocation = self._current
        assert invocation is not None
        if phase == "before":
            if invocation.gone:
                raise HangUpError
            try:
                made = self._before(invocation, "model", str(request.get("model")))
            except BaseException as gone:
                raise HangUpError from gone
            if made.strike == "throttle":
                self._model.script(error(429, "rate_limit_error", {"retry-after": "3"}))
            return
        made = self._made[threading.get_ident()]
        self.course.served += made.strike != "throttle"
        if self._after(None):
            invocation.gone = True
            raise HangUpError
        if made.strike in ("lose", "lose-all"):
            raise HangUpError

    # --- both ------------------------------------------------------------------------------------------------------

    def _before(self, invocation: Invocation, service: str, about: str) -> _Made:
        course, function = self.course, invocation.function.name
        worker = self._worker_of(invocation)
        if worker is not None and worker.stops:
            worker.stop_here()
        course.calls[function] += 1
        made = _Made(invocation, course.calls[function], service)
        course.say(f"  {function}:{made.number} {service} {about}".rstrip())
        if course.due(("stall",), function, made.number):
            assert worker is not None
            course.say("  it stops here")
            course.stalled[function] += 1
            worker.stop_here()
        self._current = invocation
        self._made[threading.get_ident()] = made
        if fault := course.due(_STRIKES, function, made.number):
            made.strike = fault.kind
            course.say(f"  it meets: {fault.kind}")
            course.unheard[service] += fault.kind in ("lose", "lose-all")
            course.refused[service] += fault.kind == "throttle"
        if course.due(("die-before",), function, made.number):
            course.say("  it dies before that")
            course.died[function] += 1
            invocation.die()
        return made

    def _after(self, failed: Exception | None) -> bool:
        """Whether the process dies here."""
        made = self._made[threading.get_ident()]
        self._current = made.invocation
        if failed is not None:
            self.course.trace[-1] += f" -> {type(failed).__name__}"
        if not self.course.due(("die-after",), made.function, made.number):
            return False
        self.course.say("  it dies after that")
        self.course.died[made.function] += 1
        return True

    def _worker_of(self, invocation: Invocation) -> Worker | None:
        thread = threading.current_thread()
        if isinstance(thread, Worker):
            self._workers[invocation.request_id] = thread
        return self._workers.get(invocation.request_id)


def _place(call: Call) -> str:
    given = call.parameters
    item = given.get("Key") or given.get("Item")
    if isinstance(item, dict):
        return str(item["sk"]["S"])
    if isinstance(item, str):
        return item
    return str(given.get("QueueUrl", given.get("TopicArn", ""))).rpartition("/")[2]
