"""Drives a machine in real time: one poller for each mapping with its workers, one thread for each schedule.

Nothing polls: a poller sleeps until a message comes, becomes visible, or a worker is free again.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from moto.sqs.models import Message

from local.clock import RealClock
from local.mappings import Mapping
from local.template import Schedule

if TYPE_CHECKING:
    from local.machine import Machine


# Workers mostly wait for a model or for the one lock around moto: more of them would only wait longer.
WORKERS = 24
# Seconds that a thread runs before another one may take its place in the middle of a call. Calls into moto take turns:
# threads that are stopped in the middle of one keep each other waiting.
_TURN = 0.05


class Threads:
    """The threads of one machine."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._changed = machine.backend.changed
        self._stopping = False
        self._busy = 0
        self._most = machine.processes.count if machine.processes else WORKERS
        self._threads = [
            *(threading.Thread(target=self._poll, args=(mapping,)) for mapping in machine.mappings),
            *(
                threading.Thread(target=self._keep_time, args=(s,))
                for s in machine.template.schedules
            ),
        ]

    def start(self) -> None:
        """Starts them all."""
        self._turn = sys.getswitchinterval()
        sys.setswitchinterval(_TURN)
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def stop(self) -> None:
        """Ends them; what is being worked on is finished first."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        sys.setswitchinterval(self._turn)

    def _poll(self, mapping: Mapping) -> None:
        name = f"{mapping.function.name}-worker"
        with ThreadPoolExecutor(mapping.concurrency, thread_name_prefix=name) as workers:
            with self._changed:
                while not self._stopping:
                    free = mapping.busy < mapping.concurrency and self._busy < self._most
                    batch = mapping.take() if free else []
                    if batch:
                        mapping.busy += 1
                        self._busy += 1
                        workers.submit(self._work, mapping, batch)
                    else:
                        self._wait_until(mapping.next_moment() if free else None)

    def _work(self, mapping: Mapping, batch: list[Message]) -> None:
        try:
            self._machine.deliver(mapping, batch)
        finally:
            with self._changed:
                mapping.busy -= 1
                self._busy -= 1
                self._changed.notify_all()

    def _keep_time(self, schedule: Schedule) -> None:
        while True:
            due = self._machine.due[schedule.name]
            with self._changed:
                while not self._stopping and self._machine.clock.now() < due:
                    self._wait_until(due)
                if self._stopping:
                    return
            self._machine.run_schedule(schedule)

    def _wait_until(self, moment: float | None) -> None:
        clock = self._machine.clock
        assert isinstance(clock, RealClock)
        left = None if moment is None else max(0.0, moment - clock.now()) / clock.speed
        self._changed.wait(left)
