"""What a job used of AWS, out of its records: units as the service counts them, and what they cost at list price.

Pure. What each kind of record stands for, in writes, reads and requests, is what `tests/integration/test_costs.py`
asserts of the protocol. It is an estimate: a message that came twice, a write that was repeated and a lookup that found
nothing leave no record. `LEFT_OUT` says what else is not in it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_HALF_EVEN, Decimal
from math import ceil

from local import aws_prices as prices
from local.usage import calls_in
from stafette.agent import definition
from stafette.aws.calls import BEGUN, Call
from stafette.aws.table import Item
from stafette.core.job import Head
from stafette.core.numbers import item_size

LEFT_OUT = (
    "messages that came twice, writes that were repeated, cache lookups without a hit, effects' own calls, "
    "reads from S3, empty receives, sweeping, storage, backups, logs, metrics, alarms, data transfer, secrets"
)
SERVICES = ("DynamoDB", "Lambda", "SQS and SNS", "S3")
_MB_MS_IN_GB_S = 1024 * 1000

Memory = Callable[[str], int]


@dataclass(slots=True)
class Units:
    """What was used.

    Attributes:
        writes, reads: units of DynamoDB, index entries included.
        sends: requests that functions made to send messages.
        messages: messages that functions took: each is received and deleted.
        publishes: notices to the topic.
        invocations: at most: of a batch, each message is counted as one.
        mb_ms: memory in MB times milliseconds of work, between a claim and its result.
        puts: objects of ours in S3.
    """

    writes: int = 0
    reads: int = 0
    sends: int = 0
    messages: int = 0
    publishes: int = 0
    invocations: int = 0
    mb_ms: int = 0
    puts: int = 0

    def add(self, other: "Units") -> None:
        """Counts what another one has counted."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def cost_micro(self) -> dict[str, int]:
        """Micro-dollars by service. Each is rounded once, here: sums of jobs are sums of these."""
        exact = {
            "DynamoDB": self.writes * prices.DYNAMODB_WRITE + self.reads * prices.DYNAMODB_READ,
            "Lambda": self.invocations * prices.LAMBDA_REQUEST
            + self.mb_ms * prices.LAMBDA_GB_SECOND * 1_000_000 / _MB_MS_IN_GB_S,
            "SQS and SNS": (self.sends + 2 * self.messages) * prices.SQS_REQUEST
            + self.publishes * prices.SNS_PUBLISH,
            "S3": self.puts * prices.S3_PUT,
        }
        return {name: _whole(exact[name]) for name in SERVICES}


def of_job(head: Head, items: list[Item], memory: Memory, *, capped: bool) -> Units:
    """What a job used, its parts aside.

    Args:
        items: the whole partition of the job.
        memory: MB of a function, by its name.
        capped: whether its tenant has a budget, so that each call was booked there too.
    """
    units = Units(messages=1, invocations=1)  # the request
    claims = head.attempt
    won = len(head.won) - ("intake" in head.won)
    forms = [item for item in items if item["sk"].startswith("FORM#")]
    waits = head.waits + sum(int(item.get("waits") or 0) for item in items if _is(item, "RESULT#"))
    # The head: put with two entries of an index, claimed, advanced, put aside, ended with an entry gone.
    units.writes += 3 + claims + won + waits + (2 if head.reason else 1) * head.status.ended
    units.messages += claims
    units.invocations += claims
    units.sends += waits
    # A form: asked and closed, with an entry of the index that comes and goes, and its job put aside and sent on.
    units.writes += 6 * len(forms)
    units.sends += len(forms)
    for item in items:
        _count_item(units, item, memory)
    for _, attempt, call in calls_in(items):
        _count_call(units, call, attempt, capped=capped)
    return units


def of_range(items: list[Item], function: str, memory: Memory, *, capped: bool) -> Units:
    """What the parts of one range of a fan-out used, and that it was handed out and counted."""
    parts = [item for item in items if _is(item, "PART#")]
    units = Units(writes=1, reads=1, messages=1, invocations=1, sends=ceil(len(parts) / 10))
    for part in parts:
        tries = int(part.get("attempt") or 0)
        ended = "ended" in part
        waits = int(part.get("waits") or 0)
        units.writes += tries + waits + (_kb(part) + 1) * ended  # claimed, its result, counted
        units.reads += tries
        units.messages += tries
        units.invocations += tries
        units.sends += waits
        units.puts += "ref" in part
        units.mb_ms += _ms(part) * memory(function)
    for _, attempt, call in calls_in(items):
        _count_call(units, call, attempt, capped=capped)
    return units


def of_split(sizes: Sequence[int]) -> Units:
    """What it used to hand out the ranges of a fan-out, of so many bytes each; without any, to send its join."""
    return Units(sends=max(1, ceil(len(sizes) / 10)))


def of_join(results: Iterable[Item], split: Item, parts: Sequence[int]) -> Units:
    """What it used to join a fan-out.

    Args:
        results: what the job has come to.
        split: of these, the one that lists the parts.
        parts: bytes of the parts of each range.
    """
    # The top of the join is read, and who finds it full sends the join.
    units = Units(reads=1, sends=1 if parts else 0)
    if parts:
        before = sum(item_size(item) for item in results if item["ended"] <= split["ended"])
        units.reads += _read(before) + sum(map(_read, parts))
    return units


def _count_item(units: Units, item: Item, memory: Memory) -> None:
    kind, name, *_ = (*item["sk"].split("#"), "")
    if kind == "RESULT":
        units.writes += _kb(item)
        units.puts += "ref" in item
        units.mb_ms += _ms(item) * memory(name.partition(":")[0])
        # What follows from it is sent: the next work, or that the job ended.
        units.sends += "reason" not in item and "split" not in item
    elif kind == "EVENT":
        units.writes += _kb(item)
    elif kind == "EFFECT":
        units.writes += 2 * _kb(item)
        if name.startswith("notify_"):
            units.publishes += 1
            units.messages += 1
            units.invocations += 1


def _count_call(units: Units, call: Call, attempt: int, *, capped: bool) -> None:
    """A call: its record, its limit, the budgets of its job and tenant; the head and the limit are read."""
    if call.cache:
        units.writes += 1
        units.reads += 1
        return
    if _caches(call.agent):
        # Who asks first looks for a known answer; an answer that may be used is kept.
        units.reads += call.why == "ask"
        units.writes += call.outcome == "ok"
    settled = call.outcome != BEGUN
    units.writes += (1 + settled) * (1 + 1 + 1 + capped)
    units.reads += 2 + (attempt > 1)  # a later attempt reads what earlier ones were answered


def _caches(agent: str) -> bool:
    """Whether answers of an agent are given again, as its file stands now."""
    try:
        return definition.load(agent).cache > 0
    except definition.DefinitionError:
        return False


def _is(item: Item, prefix: str) -> bool:
    return bool(item["sk"].startswith(prefix))


def _kb(item: Item) -> int:
    return max(1, ceil(item_size(item) / 1024))


def _read(size: int) -> int:
    return max(1, ceil(size / 4096))


def _ms(item: Item) -> int:
    if "began" not in item or "ended" not in item:
        return 0
    return ceil(max(0, item["ended"] - item["began"]) * 1000)


def _whole(millionths: Decimal) -> int:
    """Dollars for a million, a million of them: micro-dollars."""
    return int(millionths.to_integral_value(rounding=ROUND_HALF_EVEN))
