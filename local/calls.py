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

from local.invocation import running

Phase = Literal["before", "after"]


@dataclass
class Call:
    """One call of an API operation. botocore's own retries are inside it."""

    service: str  # sqs, dynamodb
    operation: str  # SendMessageBatch
    function: str  # enrich_record
    request_id: str  # of the invocation
    number: int  # counts from 1, calls that an observer stopped included
    parameters: dict[str, Any]
    response: Any = None
    error: Exception | None = None


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
            if running.get() is None:
                return send(client, operation, parameters)
            return self._watch(client, operation, parameters, send)

        with patch.object(BaseClient, "_make_api_call", watched):
            yield

    def _watch(
        self, client: BaseClient, operation: str, parameters: dict[str, Any], send: Any
    ) -> Any:
        call = self._new(client.meta.service_model.service_name, operation, parameters)
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

    def _new(self, service: str, operation: str, parameters: dict[str, Any]) -> Call:
        invocation = running.get()
        assert invocation is not None
        with self._lock:
            self._number += 1
            number = self._number
        return Call(
            service, operation, invocation.function.name, invocation.request_id, number, parameters
        )

    def _tell(self, phase: Phase, call: Call) -> None:
        # What an observer does is not the function's doing: its own calls are not seen.
        token = running.set(None)
        try:
            for observer in tuple(self._observers):
                observer(phase, call)
        finally:
            running.reset(token)
