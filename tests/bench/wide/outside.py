"""What the parts of the bench ask: a service that the bench scripts."""

from collections.abc import Callable


class _Outside:
    answer: Callable[[int], int] = staticmethod(lambda n: n * n)


def outside(n: int) -> int:
    """The square of a number, or an error."""
    return _Outside.answer(n)


def use(answer: Callable[[int], int] = lambda n: n * n) -> None:
    """Says what it answers from now on."""
    _Outside.answer = staticmethod(answer)
