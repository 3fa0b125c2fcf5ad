"""The one reader of time and chance. Everything else is handed a number, so a test can hand it another."""

import random
import time
from collections.abc import Callable


class _Clock:
    now: Callable[[], float] = staticmethod(time.time)
    sleep: Callable[[float], None] = staticmethod(time.sleep)


def now() -> float:
    """Seconds since the epoch."""
    return _Clock.now()


def sleep(seconds: float) -> None:
    """Waits in place. Only for back-off shorter than a few seconds: whatever waits longer is state."""
    _Clock.sleep(seconds)


def chance() -> float:
    """A number in [0, 1), for jitter."""
    return random.random()


def use(now: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> None:
    """Sets where time comes from, for one machine that plays at another speed."""
    _Clock.now = staticmethod(now)
    _Clock.sleep = staticmethod(sleep)
