"""What an error means for the work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafette.core.errors import (
    EventShapeError,
    NotFiniteError,
    PermanentError,
    RefusedError,
    StafetteError,
    ThrottledError,
    TransientError,
)
from stafette.core.job import MOST_FAILURES
from stafette.core.retry import LONGEST_WAIT, Bug, Fail, Later, backoff, fate


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermanentError("gone", reason="gone"), "gone"),
        (PermanentError(), "permanent"),
        (RefusedError("no"), "refused"),
        (NotFiniteError("x is nan"), "not_finite"),
    ],
)
def test_a_permanent_error_fails_the_work_with_its_reason(
    error: StafetteError, reason: str
) -> None:
    assert fate(error, 1, 0.5) == Fail(reason, str(error))


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("x"), EventShapeError(), StafetteError()]
)
def test_an_error_that_is_not_classed_is_a_bug(error: Exception) -> None:
    assert fate(error, 99, 0.5) == Bug()


@given(st.integers(1, 99), st.floats(0, 1, exclude_max=True), st.floats(0, LONGEST_WAIT))
def test_throttling_waits_at_least_as_long_as_asked_and_never_counts(
    failures: int, chance: float, wait: float
) -> None:
    later = fate(ThrottledError("busy", wait=wait), failures, chance)
    assert isinstance(later, Later)
    assert not later.counts
    assert wait <= later.seconds <= wait + 2


def test_a_wait_that_is_too_long_fails_the_work() -> None:
    failed = fate(ThrottledError("busy", wait=LONGEST_WAIT + 1), 1, 0.0)
    assert isinstance(failed, Fail)
    assert failed.reason == "rate_limited"


def test_a_transient_error_comes_back_until_its_failures_are_used_up() -> None:
    error = TransientError("busy", reason="aws_busy")
    for failures in range(1, MOST_FAILURES):
        later = fate(error, failures, 0.0)
        assert isinstance(later, Later)
        assert later.counts
    last = fate(error, MOST_FAILURES, 0.0)
    assert isinstance(last, Fail)
    assert last.reason == "attempts_exhausted"
    assert "aws_busy" in last.detail


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_back_off_grows_with_failures_is_jittered_and_bounded(failures: int, chance: float) -> None:
    assert 1 <= backoff(failures, chance) <= 600
    assert backoff(failures, 0.0) <= backoff(failures, chance) <= 2 * backoff(failures, 0.0)
    assert backoff(failures, chance) <= backoff(failures + 1, chance)


def test_the_detail_of_a_failure_is_cut() -> None:
    failed = fate(PermanentError("x" * 10_000), 1, 0.0)
    assert isinstance(failed, Fail)
    assert len(failed.detail) == 300
