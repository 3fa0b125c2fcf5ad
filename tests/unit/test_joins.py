"""Fan-out arithmetic, the policy of a join, and the guard against a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafette.core.joins import (
    MOST_PARTS,
    RANGE,
    Outcome,
    Policy,
    in_order,
    members,
    range_of,
    ranges,
)


@given(st.integers(0, MOST_PARTS))
def test_ranges_hold_every_part_once_in_order(total: int) -> None:
    parts = [index for n in range(ranges(total)) for index in members(n, total)]
    assert parts == list(range(total))
    assert all(range_of(index) == n for n in range(ranges(total)) for index in members(n, total))


@pytest.mark.parametrize(
    ("total", "expected"), [(0, 0), (1, 1), (RANGE, 1), (RANGE + 1, 2), (MOST_PARTS, 100)]
)
def test_so_many_parts_make_so_many_ranges(total: int, expected: int) -> None:
    assert ranges(total) == expected


@pytest.mark.parametrize(
    ("policy", "total", "failed", "holds"),
    [
        (Policy.all(), 0, 0, True),
        (Policy.all(), 3, 0, True),
        (Policy.all(), 3, 1, False),
        (Policy.all(tolerate=1), 3, 1, True),
        (Policy.all(tolerate=1), 3, 2, False),
        (Policy.any(), 0, 0, True),
        (Policy.any(), 3, 2, True),
        (Policy.any(), 3, 3, False),
        (Policy.at_least(0), 3, 3, True),
        (Policy.at_least(2), 3, 1, True),
        (Policy.at_least(2), 3, 2, False),
        (Policy.at_least(1), 0, 0, False),
    ],
)
def test_a_policy_holds_over_so_many_failures(
    policy: Policy, total: int, failed: int, holds: bool
) -> None:
    assert policy.holds(total, failed) is holds


def outcomes(*indexes: int) -> list[Outcome]:
    return [Outcome(index, None, "failed" if index % 2 else None) for index in indexes]


def test_outcomes_pass_in_order_one_at_a_time() -> None:
    given = outcomes(0, 1, 2)
    assert list(in_order(iter(given), 3)) == given
    assert list(in_order(iter(()), 0)) == []


@pytest.mark.parametrize("indexes", [(), (0, 2), (1, 2), (0, 1), (0, 1, 1, 2), (2, 1, 0)])
def test_a_join_never_runs_over_a_gap(indexes: tuple[int, ...]) -> None:
    with pytest.raises(LookupError, match="has no result"):
        list(in_order(iter(outcomes(*indexes)), 3))
