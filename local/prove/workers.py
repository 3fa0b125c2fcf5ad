"""Deliveries in threads of their own that stop at each of their calls, so that one goes on at a time."""

import threading
from collections.abc import Callable

# Real seconds after which a thread that did not come to its next call is a fault of this module.
_LONGEST = 60.0


class Worker(threading.Thread):
    """Some work that is let go on from one of its calls to the next."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._stopped, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False
        self.stops = True  # whether it stops at its next call

    def run(self) -> None:
        try:
            self._work()
        finally:
            self.ended = True
            self._stopped.release()

    def stop_here(self) -> None:
        """Called on behalf of the work at a call: waits until it is let go on."""
        self._stopped.release()
        self._go.acquire()

    def step(self) -> None:
        """Lets it go on until its next stop, or its end."""
        if self.ident is None:
            self.start()
        else:
            self._go.release()
        if not self._stopped.acquire(timeout=_LONGEST):
            raise RuntimeError(f"a delivery did not come to its next call in {_LONGEST:.0f} s")

    def finish(self) -> None:
        """Lets it run to its end."""
        self.stops = False
        while not self.ended:
            self.step()


def interleave(a: Worker, b: Worker, order: str) -> str:
    """Runs two to their ends; `order` as in `Fault`. Returns who made each call, for as long as both had calls left."""
    for worker in (a, b):
        worker.step()  # to its first call, without making it
    made = []
    for who in [*order, "A", "B"]:
        worker, other = (a, b) if who in "aA" else (b, a)
        while not worker.ended:
            if not other.ended:
                made.append(who.lower())
            worker.step()
            if who.islower():
                break
    return "".join(made)
