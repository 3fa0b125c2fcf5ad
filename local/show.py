"""How a job looks to a person. What strangers wrote is text: no markup is read, no control character passes."""

import json
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from local import story
from local.story import Made, Story
from stafette.core.job import Head, Status

# C0 and C1 but tab and line feed, what turns the direction of writing around, and half characters.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# How often an ended job is looked at for the last entry of its journal.
_LOOKS = 8
_STYLES = {
    Status.DONE: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "yellow",
    Status.BLOCKED: "yellow",
}


def clean(text: object) -> str:
    """Text without what a terminal would obey. Line breaks stay."""
    return _CONTROL.sub("", str(text))


def line(value: object, most: int = 100) -> str:
    """One line of something, cut off at so many characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(clean(text).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def seconds(span: float) -> str:
    """A span of time, as long as it is."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if span >= 2 * size:
            return f"{span / size:.0f} {unit}"
    return f"{span:.2f} s" if span < 10 else f"{span:.0f} s"


def usd(micro: int) -> str:
    """Micro-dollars as dollars."""
    return f"${micro / 1_000_000:.6f}"


def status(value: Status) -> Text:
    """A status in its colour."""
    return Text(value.value, style=_STYLES.get(value, "cyan"))


def grid(*columns: str) -> Table:
    """A table. Its first column and its numbers (`>`) are not broken over lines: ids are there to be copied."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for n, name in enumerate(columns):
        right = name.startswith(">")
        table.add_column(
            name.lstrip(">"),
            justify="right" if right else "left",
            no_wrap=right or n == 0,
            overflow="fold",
        )
    return table


def journal(told: Story) -> Table:
    """The stages that a job went through: when after the start, how long the work took, at which attempt."""
    table = grid("stage", "handoff", ">at", ">work", ">attempt", "status")
    won = {result.handoff: result for result in told.results if result.won}
    for entry in told.journal:
        handoff = _handoff(entry)
        result = won.get(handoff)
        table.add_row(
            entry["stage"],
            handoff,
            f"+{seconds(float(entry['at']) - told.head.created)}",
            seconds(result.ended - result.began) if result else "",
            str(entry.get("attempt", "")),
            line(" ".join(filter(None, (entry["status"], entry.get("reason"))))),
        )
    return table


def calls(made: Iterable[Made]) -> Table:
    """The model calls one by one, and what they come to together."""
    table = grid("handoff", "agent", "model", ">in", ">out", ">latency", ">cost", "outcome")
    made = list(made)
    for each in made:
        call = each.call
        table.add_row(
            each.handoff,
            line(call.agent),
            line(call.model if call.provider != "offline" else f"{call.model} (offline)"),
            str(call.input + call.cache_read + call.cache_write),
            str(call.output),
            f"{call.latency_ms} ms",
            usd(call.cost_micro),
            call.outcome,
        )
    total = [each.call for each in made]
    table.add_section()
    table.add_row(
        f"{len(made)} calls",
        "",
        "",
        str(sum(c.input + c.cache_read + c.cache_write for c in total)),
        str(sum(c.output for c in total)),
        f"{sum(c.latency_ms for c in total)} ms",
        usd(sum(c.cost_micro for c in total)),
        "",
    )
    return table


def joins(told: Story) -> list[str]:
    """What became of each fan-out, as a sentence."""
    return [
        f"parts of {each.split}: {each.counted} of {each.total} counted, {each.failed} failed"
        for each in told.parts
    ]


def forms(told: Story) -> Table:
    """What people were asked, and what they answered."""
    table = grid("form", "state", ">asked", ">open", "by", "question", "answer")
    for form in told.forms:
        closed = form.closed if form.closed is not None else form.deadline
        table.add_row(
            line(form.id),
            line(form.state.value),
            f"+{seconds(form.asked - told.head.created)}",
            seconds(closed - form.asked),
            line(form.by or "", 30),
            line(form.question, 60),
            line(form.answer, 60) if form.answer is not None else "",
        )
    return table


def effects(told: Story) -> Table:
    """What was done to the outside world."""
    table = grid("effect", "status", "result")
    for item in told.effects:
        name = item["sk"].removeprefix("EFFECT#")
        table.add_row(line(name), line(item["status"]), line(item.get("data") or "", 120))
    return table


def ending(head: Head) -> str:
    """Why a job ended that did not end well."""
    return line(": ".join(filter(None, (head.reason, head.detail))), 400)


def follow(
    job_id: str, console: Console, *, deadline: float | None = None, every: float = 0.25
) -> Story | None:
    """Shows a job as it goes: a line for each stage, on a terminal also a bar at the bottom, until it ends.

    Args:
        deadline: seconds after which it is given up.
        every: seconds between two looks.

    Returns:
        The story as it stands; None if there is no such job by then.
    """
    until = None if deadline is None else time.monotonic() + deadline
    with Live(console=console, transient=True, auto_refresh=False) as live:
        follower = _Follower(console, live.update if console.is_terminal else None)
        while True:
            told = story.read(job_id)
            if told is not None:
                follower.show(told)
            late = until is not None and time.monotonic() >= until
            if follower.over or late:
                return told
            if told is None and until is None:
                return None
            time.sleep(every)


class _Follower:
    """Says what is new since the last look."""

    def __init__(self, console: Console, draw: Callable[..., None] | None) -> None:
        self._console, self._draw = console, draw
        self._known: set[str] = set()
        self._counted = 0
        self._looks = 0
        self.over = False

    def show(self, told: Story) -> None:
        head = told.head
        for entry in told.journal:
            if entry["sk"] in self._known:
                continue
            self._known.add(entry["sk"])
            if _handoff(entry).endswith(":join"):
                self._say_parts(told)
            after = seconds(float(entry["at"]) - head.created)
            self._console.print(f"{after:>9}  {line(entry['stage']):<11} {_after(told, entry)}")
        if head.parts:
            self._say_parts(told)
        # The entry of the end is written after the head has ended; a worker that died may owe it for a while.
        self._looks += head.status.ended
        written = any(entry["status"] == head.status.value for entry in told.journal)
        self.over = head.status.ended and (written or self._looks >= _LOOKS)
        if self._draw:
            self._draw(_bar(told), refresh=True)

    def _say_parts(self, told: Story) -> None:
        counted = _counted(told)
        if counted != self._counted:
            self._counted = counted
            total = sum(each.total for each in told.parts)
            self._console.print(f"{'':9}  {'':11} parts {counted}/{total}")


def _counted(told: Story) -> int:
    return sum(each.counted for each in told.parts)


def _after(told: Story, entry: dict[str, Any]) -> str:
    made = [each.call for each in told.calls if each.handoff == _handoff(entry)]
    said = [f"{len(made)} model call{'s' if len(made) > 1 else ''}"] if made else []
    if entry["status"] != Status.ACTIVE.value:
        said.append(line(" ".join(filter(None, (entry["status"], entry.get("reason"))))))
    return ", ".join(said)


def _handoff(entry: dict[str, Any]) -> str:
    return str(entry["sk"]).split("#")[1]


def _bar(told: Story) -> RenderableType:
    head = told.head
    tokens_in, tokens_out = told.tokens
    about = Text.assemble(
        status(head.status),
        f" at {clean(head.stage)}, next {head.next or '-'}   ",
        f"{tokens_in} tokens in, {tokens_out} out, {usd(told.cost_micro)}",
    )
    if not head.parts:
        return about
    return Group(about, ProgressBar(total=head.parts, completed=_counted(told), width=40))
