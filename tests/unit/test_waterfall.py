"""A trace as lines: everything on one axis, totals that add up, and text that stays text."""

from typing import Any

import pytest

from local import waterfall
from local.spans import KINDS, Segment, Span, Trace
from local.usage import Usage
from local.waterfall import MARKS, Axis
from stafette.aws.calls import Call
from stafette.core.job import Head, Status


def head(**changes: Any) -> Head:
    known: dict[str, Any] = {
        "job_id": "j" * 26,
        "tenant": "t",
        "flow": "ticket",
        "stage": "acted",
        "status": Status.DONE,
        "last": "act",
        "won": {},
        "fingerprint": "f",
        "created": 100.0,
        "moved": 110.0,
        "deadline": 999.0,
    }
    return Head(**{**known, **changes})


def call_span(began: float, ended: float | None, outcome: str = "ok", **changes: Any) -> Span:
    known: dict[str, Any] = {
        "n": 1,
        "agent": "reader",
        "model": "claude-haiku-5-5",
        "provider": "anthropic",
        "why": "ask",
        "began": began,
        "prices": "v",
        "outcome": outcome,
        "usage_incomplete": False,
        "input": 10,
        "output": 4,
        "cache_read": 3,
        "cache_write": 2,
        "cost_micro": 123,
    }
    call = Call(**{**known, **changes})
    usage = Usage()
    usage.add(call)
    return Span("call", call.agent, began, ended, outcome, 1, usage=usage, call=call)


def trace(*spans: Span, ended: float = 110.0, **changes: Any) -> Trace:
    usage = Usage()
    for span in spans:
        usage.add_all(span.usage)
    spent = {what: sum(span.spent(what) for span in spans) for what in KINDS}
    return Trace(head(**changes), ended, list(spans), spent, usage)


def stage(*children: Span, **changes: Any) -> Span:
    work = (Segment("queue", 100.0, 102.0), Segment("work", 102.0, 110.0))
    known: dict[str, Any] = {"began": 100.0, "ended": 110.0, "outcome": "done", "segments": work}
    span = Span("stage", "classify", **{**known, **changes}, children=list(children))
    for child in children:
        span.usage.add_all(child.usage)
    return span


@pytest.mark.parametrize(
    ("segments", "drawn"),
    [
        ([("queue", 0, 5), ("work", 5, 10)], "·····█████"),
        ([("queue", 0, 1), ("wait", 1, 4), ("person", 4, 8), ("work", 8, 10)], "·~~~????██"),
        ([("work", 3.01, 3.02)], "   █      "),
        ([("work", 10, 10)], "         █"),
        ([("queue", 0, 10), ("work", 4.2, 4.3)], "····█·····"),
        ([("lost", 0, 9.99)], "xxxxxxxxx "),
    ],
    ids=["half", "all-kinds", "a-moment", "at-the-end", "work-wins", "to-the-cell"],
)
def test_bar_has_a_cell_for_every_moment(
    segments: list[tuple[str, float, float]], drawn: str
) -> None:
    axis = Axis(0.0, 10.0, 10)
    assert axis.draw(tuple(Segment(*each) for each in segments), MARKS) == drawn


def test_job_without_any_time_is_drawn() -> None:
    assert len(Axis(5.0, 5.0, 20).draw((Segment("work", 5.0, 5.0),), MARKS)) == 20


def test_lines_stand_on_one_axis_and_the_last_one_is_the_sum() -> None:
    told = trace(stage(call_span(103.0, 106.0), call_span(107.0, 109.0)))
    lines = [line.text for line in waterfall.lines(told, 170)]
    axis, top, first, second, last = lines
    assert axis.index("0") == top.index("·") == waterfall._NAME + 1
    assert top.index("█") < first.index("▒") < second.index("▒")
    assert first.split()[0] == "reader"
    assert first.startswith("  reader")
    numbers = ["10", "3", "2", "4", "$0.000123"]
    assert all(n in first.split() for n in numbers)
    assert last.split()[3:8] == ["20", "6", "4", "8", "$0.000246"]
    assert "2 model calls" in last
    assert "claude-haiku-5-5, ask" in first


@pytest.mark.parametrize("width", [80, 100, 140, 220])
def test_no_bar_is_wider_than_its_axis_at_any_width(width: int) -> None:
    told = trace(stage(call_span(99.0, 140.0)), ended=110.0)
    axis, *lines, _ = [line.text for line in waterfall.lines(told, width)]
    end = axis.index("took") - 4  # the column is eight wide
    for line in lines:
        assert max(line.rfind(mark) for mark in "·~?x█▒") < end


@pytest.mark.parametrize(
    ("span", "says", "bad"),
    [
        (call_span(103.0, 104.0, "refused"), "refused", True),
        (
            call_span(103.0, 103.0, "never settled", usage_incomplete=True),
            "never settled, may have been billed",
            True,
        ),
        (call_span(103.0, None, "under way", usage_incomplete=True), "under way", False),
        (
            call_span(103.0, 104.0, "model_timeout", usage_incomplete=True, first_token_ms=250),
            "first token 250 ms, model_timeout, may have been billed",
            True,
        ),
        (call_span(103.0, 103.0, cache="hit", saved_micro=77), "cache hit, saved $0.000077", False),
        (call_span(103.0, 104.0, why="fallback", provider="offline"), "(offline), fallback", False),
    ],
    ids=["refused", "unsettled", "under-way", "cut-off", "cache", "fallback"],
)
def test_line_of_a_call_says_what_became_of_it(span: Span, says: str, bad: bool) -> None:
    line = list(waterfall.lines(trace(stage(span)), 140))[2]
    assert line.text.endswith(says)
    assert line.bad == bad


def test_names_of_strangers_are_one_line_of_text() -> None:
    span = stage(call_span(103.0, 104.0, agent="\x1b[31mred\nnext", model="m\x00\u202e"))
    lines = [line.text for line in waterfall.lines(trace(span), 140)]
    assert "[31mred next" in lines[2]
    assert not any(sign in line for line in lines for sign in "\x1b\x00\u202e\n")


def test_totals_say_what_was_saved_and_what_may_be_billed_beyond() -> None:
    told = trace(
        stage(
            call_span(103.0, 104.0),
            call_span(104.0, 104.0, cache="hit", saved_micro=50),
            call_span(105.0, 105.0, "never settled", usage_incomplete=True, cost_micro=0),
        )
    )
    said = "\n".join(waterfall.totals(told))
    assert "10 s from being asked until it ended" in said
    assert "work 8.00 s, in queues 2.00 s" in said
    assert "2 model calls, 1 failed, $0.000123 at list price" in said
    assert "1 answers out of the cache, which saved $0.000050" in said
    assert "1 calls may have been billed beyond that" in said


def test_unfinished_job_goes_on_until_now() -> None:
    span = stage(ended=None, outcome="works")
    told = trace(span, ended=130.0, status=Status.ACTIVE)
    assert "30 s from being asked until now" in "\n".join(waterfall.totals(told))
    assert told.as_data()["ended"] is None
    assert [line.bad for line in waterfall.lines(told, 140)] == [False] * 3
