"""Repeating a write in place, where coming back later would mean to do expensive work again."""

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.wait import wait_random_exponential

from stafette import clock
from stafette.aws.failures import PASSING
from stafette.core.errors import TransientError

_TRIES = 6
# Seconds of the invocation that are left alone, to say that the write did not go through.
_MARGIN = 5.0

T = TypeVar("T")


def patiently(ends: float, write: Callable[[], T]) -> T:
    """Repeats a write while AWS is too busy or gives no answer: a few times, with jitter, never past the invocation.

    Args:
        ends: when the invocation is over, in seconds since the epoch.
        write: safe to repeat.

    Raises:
        TransientError: `aws_busy` or `aws_unreachable`; it still was.
    """

    def enough(state: RetryCallState) -> bool:
        no_time_left = clock.now() + state.upcoming_sleep > ends - _MARGIN
        return no_time_left or state.attempt_number == _TRIES

    retrying = Retrying(
        retry=retry_if_exception(_busy),
        stop=enough,
        wait=wait_random_exponential(multiplier=0.5, max=8),
        sleep=clock.sleep,
        reraise=True,
    )
    return retrying(write)


def _busy(error: BaseException) -> bool:
    return isinstance(error, TransientError) and error.reason in PASSING
