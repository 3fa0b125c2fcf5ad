"""A short form of `make bench`: a fan-out costs the same at any width, and whatever goes wrong changes nothing."""

import pytest

from stafette.core.joins import ranges
from tests.bench import fan_out


@pytest.mark.parametrize("parts", [100, 120])
def test_a_part_costs_three_writes_at_any_width_and_a_range_one_more(parts: int) -> None:
    report = fan_out.run(parts, policies=False)
    assert report.wrong == ()
    assert report.writes == 3 * parts + ranges(parts)
    assert report.sends == parts // 10 + 1
    assert (report.joins, report.failed) == (1, 0)


@pytest.mark.slow
def test_parts_that_fail_die_come_twice_late_and_in_any_order_join_once_under_every_policy() -> (
    None
):
    report = fan_out.run(230, seed=5)
    assert report.wrong == ()
    assert report.joins == 1
    assert report.failed > 0
    assert set(report.faults) >= {
        "parts that fail",
        "parts that fail at first",
        "parts that come twice",
        "messages that come when all is over",
        "ranges that come twice",
    }
    assert len({went for _, went, _ in report.policies}) == 2
