"""Runs functions in processes of their own, as Lambda does: a process that dies takes its invocation with it.

The machine stays what AWS is: queues, table, mappings. A process reaches it through its endpoint, like anybody else.
"""

import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from local.clock import RealClock
from local.functions import Functions, Outcome
from local.invocation import environments_apart
from local.template import Function
from stafette import clock as library_clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

    from local.machine import Machine


class FunctionError(Exception):
    """What a function raised in its process, as text."""


@dataclass(frozen=True)
class Setup:
    """What a process is told when it starts."""

    layers: tuple[str, ...]
    access: dict[str, str]
    environment: dict[str, str]
    clock: RealClock


@dataclass
class Worker:
    """One process, and the event that it works on."""

    process: "BaseProcess"
    pipe: Connection
    event: Any = None


class Processes:
    """So many processes, each with one invocation at a time; one that has died is replaced."""

    def __init__(self, setup: Setup, count: int) -> None:
        # Processes are forked from one that has nothing running but has imported what all of them need.
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(["local.processes", "anthropic", "stafette.relay"])
        self._setup, self.count = setup, count
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._workers: list[Worker] = []
        self._lock = Lock()
        for _ in range(count):
            self._idle.put(self._started())

    def invoke(self, function: Function, event: Any) -> Outcome:
        """Runs a function in a process that is free, and tells how it ended; at its limit the process is ended."""
        worker = self._idle.get()
        if not worker.process.is_alive():  # it died while it had nothing to do
            self._bury(worker)
            worker = self._started()
        with self._lock:
            worker.event = event
        try:
            worker.pipe.send((function, event))
            if not worker.pipe.poll(function.timeout / self._setup.clock.speed):
                raise TimeoutError(f"after {function.timeout} s")
            outcome: Outcome = worker.pipe.recv()
        except (EOFError, OSError) as error:
            outcome = Outcome(function.name, "", event, "killed", error=error)
        with self._lock:
            worker.event = None
        if outcome.kind == "killed":
            self._bury(worker)
            worker = self._started()
        self._idle.put(worker)
        return outcome

    def kill(self, event: Any) -> bool:
        """Kills the process that works on this event, by SIGKILL. False if none does any more."""
        with self._lock:
            found = next((each for each in self._workers if each.event is event), None)
            if found is not None:
                found.process.kill()
            return found is not None

    def close(self) -> None:
        """Ends them all."""
        for worker in tuple(self._workers):
            worker.process.kill()
            self._bury(worker)

    def _started(self) -> Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there, self._setup), daemon=True)
        process.start()
        there.close()
        worker = Worker(process, here)
        with self._lock:
            self._workers.append(worker)
        return worker

    def _bury(self, worker: Worker) -> None:
        with self._lock:
            self._workers.remove(worker)
        worker.process.kill()  # one that ran out of time still lives
        worker.pipe.close()
        worker.process.join()


@contextmanager
def processes(machine: "Machine", endpoint: str, count: int) -> "Iterator[Processes]":
    """While open, the functions of a machine run in so many processes, which reach it at `endpoint`."""
    assert isinstance(machine.clock, RealClock)
    functions = machine.functions
    setup = Setup(
        layers=tuple(map(str, machine.template.layers)),
        access=functions.model_access,
        environment={
            **functions.environment,
            "AWS_ENDPOINT_URL": endpoint,
            "NO_PROXY": "127.0.0.1,localhost",
        },
        clock=machine.clock,
    )
    machine.processes = running = Processes(setup, count)
    try:
        yield running
    finally:
        machine.stop()
        machine.processes = None
        running.close()


def _work(pipe: Connection, setup: Setup) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.extend(setup.layers)
    library_clock.use(setup.clock.now, setup.clock.sleep)
    functions = Functions(setup.clock, setup.access, setup.environment)
    with environments_apart():
        while True:
            try:
                function, event = pipe.recv()
            except EOFError:
                return
            outcome = functions.invoke(function, event)
            error = FunctionError(outcome.trace) if outcome.error else None
            kind = "failed" if outcome.error else outcome.kind
            pipe.send(
                Outcome(function.name, outcome.request_id, event, kind, outcome.response, error)
            )
