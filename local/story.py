"""What the table knows of a job, read as one story: head, journal, results, model calls, parts, effects."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from boto3.dynamodb.conditions import Key

from local.usage import calls_in
from stafette.aws import forms, keys, table
from stafette.aws.calls import Call
from stafette.aws.store import loaded_value
from stafette.aws.table import Item
from stafette.core.asked import Asked
from stafette.core.job import Head
from stafette.core.joins import ranges

# How far back a short id is looked for.
RECENT = 1_000


@dataclass(frozen=True, slots=True)
class Result:
    """What one attempt at one handoff came to; `value` is None where it failed."""

    handoff: str
    attempt: int
    won: bool
    began: float
    ended: float
    model: str | None
    value: Any
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """A fan-out: how many parts it has, how many have been counted, and how many of these failed."""

    split: str
    total: int
    counted: int
    failed: int


@dataclass(frozen=True, slots=True)
class Made:
    """A model call, and the handoff that it was made for."""

    handoff: str
    attempt: int
    call: Call


@dataclass(frozen=True, slots=True)
class Story:
    """A job with everything beside it. `journal` and `results` are in the order in which things happened."""

    head: Head
    journal: list[Item]
    results: list[Result]
    parts: list[Parts]
    calls: list[Made]
    effects: list[Item]
    forms: list[Asked]

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens in, cached ones included, and out."""
        made = [each.call for each in self.calls]
        return sum(c.input + c.cache_read + c.cache_write for c in made), sum(
            c.output for c in made
        )

    @property
    def cost_micro(self) -> int:
        """Micro-dollars at list price."""
        return sum(each.call.cost_micro for each in self.calls)

    def value(self, model: str) -> Any:
        """The winning value of a model, None while there is none."""
        found = (result.value for result in self.results if result.won and result.model == model)
        return next(found, None)


def read(job_id: str) -> Story | None:
    """The story so far; None if there is no such job."""
    items = list(table.query(keys.job(job_id)))
    head = next((Head.from_item(item) for item in items if item["sk"] == "JOB"), None)
    if head is None:
        return None
    results = [_result(head, item) for item in items if item["sk"].startswith("RESULT#")]
    splits = [item for item in items if item["sk"].startswith("RESULT#") and item.get("split")]
    found = [_parts(head, item) for item in splits if _won(head, item)]
    calls = [*_calls(items), *(call for each in found for call in _calls_of_parts(job_id, each))]
    journal = [item for item in items if item["sk"].startswith("EVENT#")]
    return Story(
        head=head,
        journal=sorted(journal, key=lambda item: item["at"]),
        results=sorted(results, key=lambda result: result.ended),
        parts=found,
        calls=sorted(calls, key=lambda made: made.call.began),
        effects=[item for item in items if item["sk"].startswith("EFFECT#")],
        forms=[forms.read(item) for item in items if item["sk"].startswith("FORM#")],
    )


def with_prefix(prefix: str) -> list[str]:
    """Ids of recent jobs that start so."""
    recent = (
        item["pk"].removeprefix("JOB#")
        for n in range(keys.SHARDS)
        for item in table.query_index(
            "list", Key("list_shard").eq(f"JOB#{n}"), newest_first=True, limit=RECENT
        )
    )
    return sorted(job_id for job_id in recent if job_id.startswith(prefix))


def _named(item: Item) -> tuple[str, int]:
    """Handoff and number out of the sort key of a result or a call."""
    _, handoff, number, *_ = item["sk"].split("#")
    return handoff, int(number)


def _won(head: Head, item: Item) -> bool:
    handoff, attempt = _named(item)
    return head.won.get(handoff) == attempt


def _result(head: Head, item: Item) -> Result:
    handoff, attempt = _named(item)
    return Result(
        handoff=handoff,
        attempt=attempt,
        won=_won(head, item),
        began=float(item["began"]),
        ended=float(item["ended"]),
        model=item.get("model"),
        value=loaded_value(item) if "model" in item else None,
        reason=item.get("reason"),
        detail=item.get("detail"),
    )


def _parts(head: Head, item: Item) -> Parts:
    split, _ = _named(item)
    total = len(loaded_value(item))
    places = (keys.join_shard(head.job_id, split, n, head.generation) for n in range(ranges(total)))
    shards = [table.get(place) or {} for place in places]
    return Parts(
        split,
        total,
        sum(shard.get("completed", 0) for shard in shards),
        sum(shard.get("failed", 0) for shard in shards),
    )


def _calls(items: list[Item]) -> Iterator[Made]:
    return (Made(*known) for known in calls_in(items))


def _calls_of_parts(job_id: str, of: Parts) -> Iterator[Made]:
    for n in range(ranges(of.total)):
        yield from _calls(list(table.query(keys.parts(job_id, of.split, n), "CALL#")))
