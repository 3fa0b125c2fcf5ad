"""How the time of a piece of work is told apart, and how a fan-out of any size is folded."""

import pytest

from local.spans import KINDS, Parts, Segment, Span, Try, segments
from local.usage import Usage
from stafette.aws.calls import BEGUN, Call


def told(**given: object) -> list[tuple[str, float, float]]:
    known = {"sent": 0.0, "tries": [], "until": 10.0, **given}
    return [(s.what, s.began, s.ended) for s in segments(**known)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({}, [("queue", 0, 10)]),
        ({"tries": [Try(1, 2, 10)]}, [("queue", 0, 2), ("work", 2, 10)]),
        (
            {"tries": [Try(1, 1, 2, "bug"), Try(2, 6, 10)]},
            [("queue", 0, 1), ("work", 1, 2), ("wait", 2, 6), ("work", 6, 10)],
        ),
        (
            {"tries": [Try(2, 6, 10)], "aside": 1.0},
            [("queue", 0, 1), ("wait", 1, 6), ("work", 6, 10)],
        ),
        ({"tries": [Try(2, 6, 10)], "lost": True}, [("lost", 0, 6), ("work", 6, 10)]),
        (
            {"tries": [Try(1, 1, 2), Try(2, 8, 10)], "persons": [(2, 7)]},
            [("queue", 0, 1), ("work", 1, 2), ("person", 2, 7), ("wait", 7, 8), ("work", 8, 10)],
        ),
        (
            {"tries": [Try(1, 1, 2)], "persons": [(2, 10)]},
            [("queue", 0, 1), ("work", 1, 2), ("person", 2, 10)],
        ),
        ({"tries": [Try(1, -1, 4), Try(2, 3, 10)]}, [("work", 0, 4), ("work", 4, 10)]),
    ],
    ids=[
        *("still-queued", "worked", "a-bug-and-again", "put-aside", "worker-lost", "answered"),
        *("unanswered", "clocks-that-differ"),
    ],
)
def test_time_is_told_apart_by_what_was_waited_for(
    given: dict[str, object], becomes: list[tuple[str, float, float]]
) -> None:
    assert told(**given) == becomes


def test_every_moment_is_told_once() -> None:
    found = told(tries=[Try(1, 1, 3), Try(2, 5, 7)], persons=[(3, 4), (7, 9)], aside=3.0)
    assert [ended for _, _, ended in found[:-1]] == [began for _, began, _ in found[1:]]
    assert (found[0][1], found[-1][2]) == (0.0, 10.0)


def part(n: int, took: float, outcome: str = "done") -> Span:
    work = (Segment("queue", 0.0, 1.0), Segment("work", 1.0, 1.0 + took))
    ended = None if outcome == "works" else 1.0 + took
    return Span("part", f"split:{n:05d}", 0.0, ended, outcome, segments=work)


def test_many_parts_are_counted_and_those_that_failed_and_the_slowest_are_kept() -> None:
    parts = Parts("split", 0.0)
    for n in range(10_000):
        parts.add(part(n, 0.1, "failed: bad" if n == 5_000 else "done"), n, 3)
        assert len(parts.kept) <= 3
    for n, took in ((10_000, 9.0), (10_001, 0.05), (10_002, 8.0)):
        parts.add(part(n, took), n, 3)
    span = parts.span(20.0)
    assert [child.name for child in span.children] == ["split:05000", "split:10000", "split:10002"]
    assert span.about == "10002 of 10003 done, 1 failed, 10000 more not shown"
    assert span.ended == 10.0
    assert parts.spent["queue"] == pytest.approx(10_003)
    assert parts.spent["work"] == pytest.approx(10_000 * 0.1 + 17.05)


def test_parts_without_a_record_are_open() -> None:
    parts = Parts("split", 0.0)
    parts.add(part(0, 1.0), 0, None)
    parts.add(part(1, 1.0, "works"), 1, None)
    parts.expect(5)
    span = parts.span(7.0)
    assert (span.name, span.ended, span.outcome) == ("split, 5 parts", None, "open")
    assert span.about == "1 of 5 done, 4 open, 3 more not shown"


def call(**changes: object) -> Call:
    known = {"n": 1, "agent": "a", "model": "m", "provider": "p", "why": "ask", "began": 1.0}
    return Call(**{**known, "prices": "v", "outcome": "ok", "usage_incomplete": False, **changes})  # type: ignore[arg-type]


def test_usage_counts_what_came_to_nothing_and_what_nobody_said_the_price_of() -> None:
    usage = Usage()
    for each in (
        call(input=1, output=2, cache_read=3, cache_write=4, cost_micro=5, latency_ms=10),
        call(outcome="invalid_answer", input=1, cost_micro=7),
        call(why="retry", input=1, cost_micro=7, latency_ms=30),
        call(why="fallback", outcome="refused", cost_micro=1),
        call(outcome=BEGUN, usage_incomplete=True),
        call(outcome="model_timeout", usage_incomplete=True),
        call(cache="hit", saved_micro=9),
    ):
        usage.add(each)
    assert usage.as_data() == {
        "calls": 6,
        "failed": 3,
        "retries": 1,
        "fallbacks": 1,
        "unsettled": 2,
        "hits": 1,
        "input": 3,
        "output": 2,
        "cache_read": 3,
        "cache_write": 4,
        "cost_micro": 20,
        "saved_micro": 9,
    }
    assert usage.latency_ms == 10
    twice = Usage()
    twice.add_all(usage)
    twice.add_all(usage)
    assert twice.as_data() == {name: 2 * n for name, n in usage.as_data().items()}


def test_kinds_of_time_are_all_drawn() -> None:
    from local.waterfall import LEGEND, MARKS

    assert set(MARKS) == set(KINDS)
    assert all(mark in LEGEND for mark in MARKS.values())
