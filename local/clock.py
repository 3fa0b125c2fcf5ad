"""Time for one machine: real, or set by hand. The machine makes it the time of the library and of moto alike."""

import time
from datetime import UTC, datetime
from threading import Lock
from typing import Protocol


class Clock(Protocol):
    """What one machine needs of time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""

    def advance_to(self, moment: float) -> None:
        """Lets time pass until `moment`; a moment that is over changes nothing."""


class RealClock:
    """The time of the machine it runs on, or so many times as fast from the moment at which it is made."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._start = time.time()

    def now(self) -> float:
        return self._start + (time.time() - self._start) * self.speed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.speed)

    def advance_to(self, moment: float) -> None:
        self.sleep(max(0.0, moment - self.now()))


class VirtualClock:
    """Stands still until somebody moves it, so that a deadline of days costs nothing to wait for."""

    def __init__(self, start: float | None = None) -> None:
        """Starts at `start`, or at the real time."""
        self._now = time.time() if start is None else start
        self._lock = Lock()

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves on by `seconds`."""
        with self._lock:
            self._now += max(0.0, seconds)

    def advance_to(self, moment: float) -> None:
        with self._lock:
            self._now = max(self._now, moment)

    def go_back_to(self, moment: float) -> None:
        """Lets it be `moment` again, for a run that is taken up again from there."""
        with self._lock:
            self._now = moment

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


def naive_utc(moment: float) -> datetime:
    """`moment` as moto wants it: UTC, without saying so."""
    return datetime.fromtimestamp(moment, UTC).replace(tzinfo=None)
