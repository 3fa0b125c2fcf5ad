"""Reads the trace of a job out of the table.

It looks at keys and times, never at a value: what lies in the bucket may be gone, and what people wrote is none of its
business. Of a fan-out one range is in memory at a time, and of its parts a few are kept.
"""

from collections import defaultdict
from collections.abc import Iterator

from local.spans import KINDS, Parts, Span, Trace, Try, segments
from local.usage import Usage, calls_in
from stafette.aws import keys, table
from stafette.aws.calls import BEGUN, Call
from stafette.aws.table import Item
from stafette.core.job import Head, Status
from stafette.core.joins import ranges

# How many parts of a fan-out are kept, unless all are asked for: those that failed, then the slowest.
KEPT = 5
# Seconds after which a call that was begun and not settled is not under way any more: no invocation is longer.
_UNDER_WAY = 900.0
_LONG = ("value", "ref", "detail")
# Reasons under which a claim may end the work without a try at it.
_NO_TRY = {"attempts_exhausted", "never_started"}

Made = list[tuple[int, Call]]
Asked = list[tuple[float, float]]


def read(job_id: str, now: float, *, every_part: bool = False) -> Trace | None:
    """The trace of a job as it stands; None if there is no such job."""
    items = [_slim(item) for item in table.query(keys.job(job_id))]
    head = next((Head.from_item(item) for item in items if item["sk"] == "JOB"), None)
    return _Reader(head, items, now, None if every_part else KEPT).trace() if head else None


def partitions(head: Head, split: str) -> Iterator[list[Item]]:
    """The items of a fan-out, range by range: parts, model calls, and the count of the range."""
    tops = table.query(f"{keys.job(head.job_id)}#{split}", "JOIN")
    known = max((int(item["completed"]) for item in tops), default=0)
    if head.parts and head.handoff == f"{split}:join":
        known = ranges(head.parts)
    number = 0
    while (items := list(table.query(keys.parts(head.job_id, split, number)))) or number < known:
        yield items
        number += 1


class _Reader:
    """Makes the spans of one job."""

    def __init__(self, head: Head, items: list[Item], now: float, most: int | None) -> None:
        self._head, self._now, self._most = head, now, most
        ended = head.ended or (head.moved if head.status is Status.DONE else None)
        self._until = now if ended is None else ended
        self._results = _of(items, "RESULT#")
        self._effects = _of(items, "EFFECT#")
        self._calls: dict[str, Made] = defaultdict(list)
        for handoff, attempt, call in calls_in(items):
            self._calls[handoff].append((attempt, call))
        self._persons: dict[str, Asked] = defaultdict(list)
        for form in _of(items, "FORM#"):
            closed = _moment(form, "closed")
            self._persons[form["handoff"]].append(
                (float(form["asked"]), self._until if closed is None else closed)
            )
        events = _of(items, "EVENT#")
        came = ((float(e["at"]), e["sk"].split("#")[1]) for e in events if _moved(head, e))
        # Of two at one moment, the one with the earlier attempt came first; intake makes none.
        last = head.attempt + 1
        order = {**head.won, "intake": 0}
        self._came = sorted(came, key=lambda each: (each[0], order.get(each[1], last)))

    def trace(self) -> Trace:
        head = self._head
        spans: list[Span] = []
        spent, usage = dict.fromkeys(KINDS, 0.0), Usage()
        for handoff, sent, before in self._handoffs():
            parts = None
            if handoff.endswith(":join"):
                parts = self._parts(handoff.removesuffix(":join"), sent)
                spans.append(parts.span(self._until))
                if parts.open and handoff not in head.won:
                    handoff = ""
                sent = sent if parts.ended is None else max(sent, parts.ended)
            if handoff:
                spans.append(self._stage(handoff, sent, before))
            for what in KINDS:
                spent[what] += parts.spent[what] if parts else 0.0
                spent[what] += spans[-1].spent(what) if handoff else 0.0
        self._add_effects(spans)
        for span in spans:
            usage.add_all(span.usage)
        return Trace(head, self._until, spans, spent, usage)

    def _handoffs(self) -> Iterator[tuple[str, float, int]]:
        """The work of the job in order: its handoff, when it was sent, the last attempt at what came before it."""
        sent, before = self._head.created, 0
        for at, handoff in self._came:
            if handoff not in ("intake", "job"):
                yield handoff, sent, before
            # Intake claims nothing: the attempts of a job are those after it.
            before = max(before, 0 if handoff == "intake" else self._head.won.get(handoff, 0))
            sent = at
        if self._head.handoff is not None and self._head.handoff not in self._head.won:
            yield self._head.handoff, sent, before

    def _stage(self, handoff: str, sent: float, before: int) -> Span:
        head, won = self._head, self._head.won.get(handoff)
        results = {_attempt(r): r for r in self._results if r["sk"].split("#")[1] == handoff}
        last = won or head.attempt
        known = results.get(last) or ({} if won else head.model_dump(exclude_none=True))
        tries = _tries(results, self._calls[handoff])
        if won is None and head.began is not None:
            tries.append(Try(last, head.began, self._until, head.reason))
        ended = _moment(known, "ended") if won else None
        span = Span("stage", handoff, sent, ended, self._outcome() if won is None else "done")
        if ended is None and head.status.ended:
            span.ended = self._until
        gave_up = won is None and head.began is None and head.reason in _NO_TRY
        self._fill(span, known, tries, last - before - gave_up)
        _add_calls(span, self._calls[handoff], self._now, before)
        return span

    def _add_effects(self, spans: list[Span]) -> None:
        """Puts each effect with the last stage that was at work when it was tried; notices are no work of a stage."""
        stages = [span for span in spans if span.kind == "stage"]
        for item in self._effects:
            began, name = float(item["began"]), item["sk"].removeprefix("EFFECT#")
            if name.startswith("notify_"):
                continue
            at_work = [s for s in stages if s.began <= began <= (s.ended or self._until)]
            for stage in at_work[-1:]:
                effect = Span("effect", name, began, began, str(item["status"]))
                stage.children.append(effect)

    def _fill(self, span: Span, known: Item, tries: list[Try], attempts: int) -> None:
        """How the time of a stage or a part was spent, and what is to be said of its attempts."""
        waits = int(known.get("waits") or 0)
        silent = max(0, attempts - waits - len({each.attempt for each in tries}))
        if span.ended is None and known.get("owner"):
            silent = max(0, silent - 1)  # it works
        span.attempt = attempts
        span.segments = segments(
            span.began,
            tries,
            self._until if span.ended is None else span.ended,
            persons=self._persons[span.name],
            aside=_moment(known, "aside"),
            lost=silent > 0,
        )
        said = [f"put aside {waits}x ({known.get('why')})"] if waits else []
        said += [f"attempt {each.attempt}: {each.reason}" for each in tries if each.reason]
        said += [f"{silent}x no word"] if silent else []
        span.about = ", ".join(said)

    def _outcome(self) -> str:
        """What an unfinished job does at the stage where it is."""
        head = self._head
        if head.reason:
            return f"{head.status.value}: {head.reason}"
        if head.status is not Status.ACTIVE:
            return head.status.value
        return _open(head.model_dump(), self._now)

    # --- a fan-out ---------------------------------------------------------------------------------------------

    def _parts(self, split: str, sent: float) -> Parts:
        parts = Parts(split, sent)
        for items in partitions(self._head, split):
            made: dict[str, Made] = defaultdict(list)
            for handoff, attempt, call in calls_in(items):
                made[handoff].append((attempt, call))
            for item in _of(items, "PART#"):
                part = self._part(
                    split, sent, _slim(item), made, done="value" in item or "ref" in item
                )
                parts.add(part, int(item["index"]), self._most)
        if self._head.handoff == f"{split}:join" and self._head.parts:
            parts.expect(self._head.parts)
        return parts

    def _part(
        self, split: str, sent: float, item: Item, made: dict[str, Made], *, done: bool
    ) -> Span:
        name = f"{split}:{int(item['index']):05d}"
        reason, ended = item.get("reason"), _moment(item, "ended")
        attempts = int(item.get("attempt") or 0)
        tries = _tries({}, made[name])
        began = _moment(item, "began")
        if began is not None and ended is not None:
            tries = [each for each in tries if each.attempt != attempts]
            tries.append(Try(attempts, began, ended, reason))
        outcome = "done" if done else f"failed: {reason}" if reason else _open(item, self._now)
        span = Span("part", name, sent, ended, outcome)
        gave_up = began is None and reason in _NO_TRY
        self._fill(span, item, tries, attempts - gave_up)
        _add_calls(span, made[name], self._now)
        return span


def _slim(item: Item) -> Item:
    """Without what may be long; a head is whole."""
    if item["sk"] == "JOB":
        return item
    return {name: value for name, value in item.items() if name not in _LONG}


def _of(items: list[Item], prefix: str) -> list[Item]:
    return [item for item in items if item["sk"].startswith(prefix)]


def _moved(head: Head, event: Item) -> bool:
    """Whether an entry of the journal says that work was done, or that the job was opened again."""
    _, name, n = event["sk"].split("#")
    return name in head.won or (name == "job" and int(n) % 2 == 0)


def _attempt(item: Item) -> int:
    return int(item["sk"].split("#")[2])


def _moment(item: Item, name: str) -> float | None:
    return None if item.get(name) is None else float(item[name])


def _open(item: Item, now: float) -> str:
    """What work does that has not ended."""
    if item.get("form"):
        return "waits for a person"
    if item.get("owner") and float(item.get("lease") or 0) > now:
        return "works"
    if item.get("owner"):
        return "its worker is gone"
    if float(item.get("not_before") or 0) > now:
        return f"waits: {item.get('why') or 'later'}"
    return "sent"


def _tries(results: dict[int, Item], made: Made) -> list[Try]:
    """The attempts that left word: by what they came to, else by the model calls that they made."""
    tries = [
        Try(n, float(item["began"]), float(item["ended"]), item.get("reason"))
        for n, item in results.items()
    ]
    spans: dict[int, list[float]] = defaultdict(list)
    for attempt, call in made:
        if attempt not in results:
            spans[attempt] += [call.began, call.began + call.latency_ms / 1000]
    return tries + [Try(n, min(times), max(times)) for n, times in spans.items()]


def _add_calls(span: Span, made: Made, now: float, before: int = 0) -> None:
    for attempt, call in sorted(made, key=lambda each: (each[1].began, each[1].n)):
        began = float(call.began)
        ended: float | None = began + call.latency_ms / 1000
        outcome = call.outcome
        if outcome == BEGUN:
            under_way = now - began < _UNDER_WAY and span.ended is None
            ended, outcome = (None, "under way") if under_way else (began, "never settled")
        span.usage.add(call)
        span.children.append(
            Span(
                *("call", call.agent, began, ended, outcome),
                attempt=attempt - before,
                call=call,
                usage=_one(call),
            )
        )


def _one(call: Call) -> Usage:
    usage = Usage()
    usage.add(call)
    return usage
