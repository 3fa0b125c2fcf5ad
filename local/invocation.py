"""Which invocation the running code belongs to, and the environment it sees.

On Lambda each function is a process with an environment of its own; here many run in threads of one process. While
a machine is up, `os.environ` looks into the invocation first. Nothing of this is known outside `local/`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import NoReturn
from unittest.mock import patch

from local.template import Function


class ProcessGone(BaseException):
    """The process of an invocation has ended in the middle of its work."""


@dataclass
class Invocation:
    """One run of a function. When its process is `gone`, nothing that it still tries reaches anybody."""

    function: Function
    request_id: str
    deadline: float  # seconds since the epoch
    environment: dict[str, str]
    gone: bool = False

    def live(self) -> None:
        """Raises ProcessGone if the process is gone: also for the handlers and the clean-up that ran into it."""
        if self.gone:
            raise ProcessGone

    def die(self) -> NoReturn:
        """Ends the process here."""
        self.gone = True
        raise ProcessGone


running: ContextVar[Invocation | None] = ContextVar("running", default=None)


class _Environ(os._Environ[str]):
    """`os.environ` that is the function's own inside an invocation."""

    def __getitem__(self, key: str) -> str:
        invocation = running.get()
        return super().__getitem__(key) if invocation is None else invocation.environment[key]

    def __setitem__(self, key: str, value: str) -> None:
        invocation = running.get()
        if invocation is None:
            super().__setitem__(key, value)
        elif isinstance(value, str):
            invocation.environment[key] = value
        else:
            raise TypeError(f"str expected, not {type(value).__name__}")

    def __delitem__(self, key: str) -> None:
        invocation = running.get()
        if invocation is None:
            super().__delitem__(key)
        else:
            del invocation.environment[key]

    def __iter__(self) -> Iterator[str]:
        invocation = running.get()
        return super().__iter__() if invocation is None else iter(list(invocation.environment))

    def __len__(self) -> int:
        invocation = running.get()
        return super().__len__() if invocation is None else len(invocation.environment)


@contextmanager
def environments_apart() -> Iterator[None]:
    """While open, an invocation sees its own environment, and so do the threads it starts."""
    plain, start = type(os.environ), threading.Thread.start

    def start_within(thread: threading.Thread) -> None:
        if running.get() is not None:
            context, run = copy_context(), thread.run
            thread.run = lambda: context.run(run)  # type: ignore[method-assign]
        start(thread)

    # The class of the object is changed, not the name `os.environ`: others hold the object already.
    os.environ.__class__ = _Environ
    try:
        with patch.object(threading.Thread, "start", start_within):
            yield
    finally:
        os.environ.__class__ = plain
