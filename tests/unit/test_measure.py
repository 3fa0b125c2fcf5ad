"""Figures of decisions: what counts as right, as an abstention, as a failure; and the threshold that costs least."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local import measure, tuning
from local.labelled import Line
from local.measure import Decision

LABELS = st.sampled_from(["a", "b", None])


def decision(
    label: str | None, said: str | None, sure: float | None = None, **more: object
) -> Decision:
    return Decision(Line(1, "text", label), said, sure, **more)  # type: ignore[arg-type]


decisions = st.lists(st.builds(decision, LABELS, LABELS, st.floats(0, 1)), min_size=1, max_size=30)

MIXED = [
    decision("a", "a", 0.9, cost_micro=10, latency_ms=100, calls=1),
    decision("a", "b", 0.4, cost_micro=10, latency_ms=200, calls=1),
    decision("a", None, cost_micro=40, latency_ms=900, calls=3),
    decision("b", "b", 0.8, cost_micro=10, latency_ms=100, calls=1),
    decision(None, None, cost_micro=10, latency_ms=100, calls=1),
    decision(None, "b", 0.3, cost_micro=10, latency_ms=100, calls=1),
    decision("b", None, failed="model_error", latency_ms=50, calls=1),
    decision("b", "b", 0.7, cost_micro=10, latency_ms=100, calls=1),
]


def test_figures_count_abstentions_and_failures_apart() -> None:
    found = measure.figures(MIXED)
    assert found.accuracy == 4 / 8
    assert found.coverage == 4 / 6
    assert found.precision == 3 / 5
    assert (found.abstained_right, found.abstained_wrong) == (1 / 2, 1 / 6)
    assert found.failed == 1
    assert (found.cost_micro, found.calls) == (100 / 8, 10 / 8)
    assert (found.latency_ms, found.latency_ms_p95) == (100, 900)


def test_labels_have_their_precision_and_recall() -> None:
    rows = {row.label: row for row in measure.per_label(MIXED)}
    assert (rows["a"].lines, rows["a"].precision, rows["a"].recall) == (3, 1.0, 1 / 3)
    assert (rows["b"].lines, rows["b"].precision, rows["b"].recall) == (3, 2 / 4, 2 / 3)
    [never] = measure.per_label([decision("a", None)])
    assert (never.precision, never.recall) == (None, 0.0)


def test_confusions_are_told_by_what_should_have_been_and_what_was() -> None:
    counts = measure.confusions(MIXED)
    assert counts["a", "b"] == counts["a", None] == counts[None, "b"] == counts[None, None] == 1
    assert counts["b", "b"] == 2
    assert sum(counts.values()) == 7  # a failure is no confusion


@given(decisions)
def test_shares_are_shares_and_every_line_is_counted_once(found: list[Decision]) -> None:
    figures = measure.figures(found)
    for share in (figures.accuracy, figures.coverage, figures.precision, figures.abstained_right):
        assert share is None or 0 <= share <= 1
    assert sum(measure.confusions(found).values()) == figures.lines == len(found)


@given(decisions, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_threshold_never_answers_more(
    found: list[Decision], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    answered = [sum(not d.abstained for d in tuning.at(found, t)) for t in (low, high)]
    assert answered[0] >= answered[1]


@given(decisions, st.floats(0, 20))
def test_no_threshold_costs_less_than_the_chosen_one(found: list[Decision], costs: float) -> None:
    best = tuning.choose(found, costs)
    assert best in tuning.table(found, best.threshold, costs)
    for n in range(101):
        other = tuning.point(found, n / 100, costs)
        assert (other.cost, other.threshold) >= (best.cost, best.threshold)


def test_dear_mistakes_raise_the_threshold_and_cheap_ones_lower_it() -> None:
    found = [decision("a", "a", 0.9), decision("a", "a", 0.4), decision("a", "b", 0.6)]
    assert tuning.choose(found, wrong_costs=5).threshold == 0.61
    assert tuning.choose(found, wrong_costs=0.5).threshold == 0.0
    # To abstain where that is right costs nothing: lines that are for nobody raise it as well.
    rest = [decision("a", "a", 0.9), decision(None, "b", 0.6)]
    assert tuning.choose(rest, wrong_costs=0.5).threshold == 0.61


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 5), (0.9, 9), (0.95, 10), (1.0, 10)])
def test_percentile_is_a_value_that_was_seen(share: float, value: int) -> None:
    assert measure.percentile(range(1, 11), share) == value


def test_what_was_given_up_keeps_its_cost() -> None:
    [left] = tuning.at([replace(MIXED[0], sure=0.1)], 0.5)
    assert left.abstained
    assert left.cost_micro == 10
