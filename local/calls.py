"""Every AWS call that functions make, seen at the one place that all boto3 clients of a process share.

Production code has no hooks: tests count here, and fail a call before it is sent or after it was carried out.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal
from unittest.mock import patch

from botocore.client import BaseClient

from local.invocation import Invocation, running

Phase = Literal["before", "after"]


@dataclass
class Call:
    """One call of an API operation. botocore's own retries are inside it."""

    service: str  # sqs, dynamodb
    operation: str  # SendMessageBatch
    invocation: Invocation
    number: int  # counts from 1, calls that an observer stopped included
    parameters: dict[str, Any]
    response: Any = None
    error: Exception | None = None

    @property
    def function(self) -> str:
        """The function that makes it, as its folder is called."""
        return self.invocation.function.name

    @property
    def request_id(self) -> str:
        """Of the invocation."""
        return self.invocation.request_id


Observer = Callable[[Phase, Call], None]


@dataclass
class Calls:
    """The calls of one machine."""

    keep: bool = True
    made: list[Call] = field(default_factory=list)
    counts: Counter[tuple[str, str, str]] = field(
        default_factory=Counter
    )  # function, service, operation
    _observers: list[Observer] = field(default_factory=list)
    _number: int = 0
    _lock: Lock = field(default_factory=Lock)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Shows each call to `observer` before and after; it may raise. Returns what takes it off again."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While open, the calls of every client of this process that are made inside an invocation are seen."""
        send = BaseClient._make_api_call  # type: ignore[attr-defined]

        def watched(client: BaseClient, operation: str, parameters: dict[str, Any]) -> Any:
            invocation = running.get()
            if invocation is None:
                return send(client, operation, parameters)
            invocation.live()
            return self._watch(client, invocation, operation, parameters, send)

        with patch.object(BaseClient, "_make_api_call", watched):
            yield

    def _watch(
        self,
        client: BaseClient,
        invocation: Invocation,
        operation: str,
        parameters: dict[str, Any],
        send: Any,
    ) -> Any:
        service = client.meta.service_model.service_name
        with self._lock:
            self._number += 1
            call = Call(service, operation, invocation, self._number, parameters)
        self._tell("before", call)
        with self._lock:
            self.counts[call.function, call.service, call.operation] += 1
            if self.keep:
                self.made.append(call)
        try:
            call.response = send(client, operation, parameters)
        except Exception as error:
            call.error = error
            self._tell("after", call)
            raise
        self._tell("after", call)
        return call.response

    def _tell(self, phase: Phase, call: Call) -> None:
        # What an observer does is not the function's doing: its own calls are not seen.
        token = running.set(None)
        try:
            for observer in tuple(self._observers):
                observer(phase, call)
        finally:
            running.reset(token)
