"""A trace as lines for a terminal: a tree on the left, one axis of time for all of it, what each piece took and cost.

Pure. The lines come one by one, for there may be thousands.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from local.show import line, seconds, usd
from local.spans import KINDS, Segment, Span, Trace
from local.usage import Usage

# How a moment is drawn; where several fall on one cell, the last of them.
MARKS = {"queue": "·", "lost": "x", "wait": "~", "person": "?", "work": "█"}
LEGEND = (
    "· in a queue   ~ put aside   ? a person   x no word from a worker   █ work   ▒ a model call"
)
# Outcomes with which nothing is wrong.
_WELL = ("done", "ok", "open", "sent", "works", "waits", "blocked", "under way", "COMPLETED")
CALL, EFFECT = "▒", "◆"
_NUMBERS = (7, 7, 7, 6, 10)
_HEADS = ("in", "read", "written", "out", "cost")
_NAME, _TOOK, _LEAST_BAR, _ABOUT = 30, 8, 20, 44


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and whether something is wrong with what it is about."""

    text: str
    bad: bool = False


def lines(trace: Trace, width: int) -> Iterator[Line]:
    """The waterfall, so many characters wide; what it is all about goes beyond where there is no room."""
    bar = max(_LEAST_BAR, width - _NAME - _TOOK - sum(_NUMBERS) - len(_NUMBERS) - 3 - _ABOUT)
    axis = Axis(trace.head.created, trace.ended, bar)
    end = f"+{seconds(trace.ended - trace.head.created)}"
    yield Line(_row("", f"0{end:>{bar - 1}}", "took", _HEADS, ""))
    for span in trace.spans:
        yield from _lines(span, axis, trace.ended, 0)
    wall = f"{seconds(trace.ended - trace.head.created)}"
    yield Line(_row("all", " " * bar, wall, _numbers(trace.usage), _calls(trace.usage)))


def totals(trace: Trace) -> Iterator[str]:
    """What all of it comes to, as sentences."""
    head, usage, spent = trace.head, trace.usage, trace.spent
    wall = seconds(trace.ended - head.created)
    yield f"{wall} from being asked until {'it ended' if head.status.ended else 'now'}"
    parts = [
        f"work {seconds(spent['work'])}",
        f"in queues {seconds(spent['queue'])}",
        f"put aside {seconds(spent['wait'])}",
        f"waiting for people {seconds(spent['person'])}",
    ]
    if spent["lost"]:
        parts.append(f"until lost workers' messages came back {seconds(spent['lost'])}")
    yield "of all stages and parts, side by side or not: " + ", ".join(parts)
    yield f"{_calls(usage) or 'no model calls'}, {usd(usage.cost_micro)} at list price"
    if usage.hits:
        yield f"{usage.hits} answers out of the cache, which saved {usd(usage.saved_micro)}"
    if usage.unsettled:
        yield (
            f"{usage.unsettled} calls may have been billed beyond that: "
            "nobody said how many tokens they were"
        )


@dataclass(frozen=True, slots=True)
class Axis:
    """From when until when, on so many cells."""

    began: float
    ended: float
    cells: int

    def draw(self, segments: tuple[Segment, ...], marks: dict[str, str]) -> str:
        """A bar. What is shorter than a cell has one."""
        drawn = [" "] * self.cells
        for what in KINDS:
            for each in segments:
                if each.what == what:
                    first = min(self._cell(each.began), self.cells - 1)
                    last = max(first + 1, self._cell(each.ended))
                    drawn[first:last] = marks[what] * (last - first)
        return "".join(drawn)

    def _cell(self, moment: float) -> int:
        share = (moment - self.began) / max(self.ended - self.began, 1e-6)
        return min(self.cells - 1, max(0, int(share * self.cells))) if share < 1 else self.cells


def _lines(span: Span, axis: Axis, now: float, depth: int) -> Iterator[Line]:
    ended = now if span.ended is None else span.ended
    drawn = span.segments or (Segment("work", span.began, ended),)
    marks = {"call": CALL, "effect": EFFECT}.get(span.kind)
    bar = axis.draw(drawn, {**MARKS, "work": marks} if marks else MARKS)
    took = "" if span.kind == "effect" else seconds(ended - span.began)
    bad = not span.outcome.startswith(_WELL)
    name = f"{'  ' * depth}{line(span.name)}"
    yield Line(_row(name, bar, took, _numbers(span.usage), _about(span)), bad)
    for child in span.children:
        yield from _lines(child, axis, now, depth + 1)


def _row(name: str, bar: str, took: str, numbers: tuple[str, ...], about: str) -> str:
    cells = " ".join(f"{n:>{size}}" for n, size in zip(numbers, _NUMBERS, strict=True))
    cut = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return f"{cut:<{_NAME}} {bar} {took:>{_TOOK}} {cells}  {about}".rstrip()


def _numbers(usage: Usage) -> tuple[str, ...]:
    if not usage.calls:
        return ("",) * len(_NUMBERS)
    tokens = (usage.input, usage.cache_read, usage.cache_write, usage.output)
    return (*(str(n) for n in tokens), usd(usage.cost_micro))


def _calls(usage: Usage) -> str:
    if not usage.calls + usage.hits:
        return ""
    said = [f"{usage.calls} model call{'' if usage.calls == 1 else 's'}"]
    said += [f"{usage.failed} failed"] if usage.failed else []
    return ", ".join(said)


def _about(span: Span) -> str:
    said: list[str] = []
    call = span.call
    if call is not None:
        said.append(f"{call.model} (offline)" if call.provider == "offline" else call.model)
        said.append(call.why)
        if call.cache:
            said.append(f"cache {call.cache}, saved {usd(call.saved_micro)}")
        if call.first_token_ms is not None:
            said.append(f"first token {call.first_token_ms} ms")
        if span.attempt > 1:
            said.append(f"attempt {span.attempt}")
    if span.kind in ("stage", "part") and span.attempt > 1:
        said.append(f"{span.attempt} attempts")
    if span.outcome not in ("done", "ok"):
        said.append(span.outcome)
    if call is not None and call.usage_incomplete and span.outcome != "under way":
        said.append("may have been billed")
    return line(", ".join([*said, *([span.about] if span.about else [])]), 200)
