"""Answers that are given again: one item each, with the time until when. The clock decides, not the item."""

from dataclasses import dataclass

from stafette import clock
from stafette.aws import keys, table
from stafette.aws.store import VALUE_LIMIT


@dataclass(frozen=True, slots=True)
class Cached:
    """An answer as JSON, and the micro-dollars that it cost."""

    value: str
    cost_micro: int


def find(digest: str) -> Cached | None:
    """The answer to a question, if it is still given."""
    item = table.get(keys.cache(digest))
    if item is None or item["expires"] <= clock.now():
        return None
    return Cached(item["value"], item["cost_micro"])


def keep(digest: str, answer: Cached, seconds: int) -> None:
    """Gives an answer again for so many seconds. One that is too large for an item is not kept."""
    if len(answer.value.encode()) <= VALUE_LIMIT:
        item = {"value": answer.value, "cost_micro": answer.cost_micro}
        table.put(keys.cache(digest), {**item, "expires": int(clock.now()) + seconds})
