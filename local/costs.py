"""What recent jobs cost, summed by flow, agent, model, tenant or day: read from the table, job by job."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from heapq import merge
from itertools import islice
from pathlib import Path

from boto3.dynamodb.conditions import Key

from local import bill
from local.bill import SERVICES, Memory, Units
from local.traces import partitions
from local.usage import Usage, calls_in
from stafette.aws import keys, table
from stafette.aws.calls import Call
from stafette.aws.table import Item
from stafette.core.job import Head
from stafette.core.numbers import item_size

AXES = ("flow", "agent", "model", "tenant", "day")
# Those by which every job is in one group, and with it what it used of AWS.
OF_JOBS = ("flow", "tenant", "day")


@dataclass(slots=True)
class Group:
    """What belongs together: jobs, their model calls, and what they used of AWS."""

    jobs: int = 0
    usage: Usage = field(default_factory=Usage)
    units: Units = field(default_factory=Units)
    aws_micro: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVICES, 0))

    def add_job(self, units: Units) -> None:
        """Counts a job and what it used of AWS."""
        self.jobs += 1
        self.units.add(units)
        for service, micro in units.cost_micro().items():
            self.aws_micro[service] += micro


@dataclass(slots=True)
class Costs:
    """What jobs cost.

    Attributes:
        groups: by what was asked for.
        since: jobs that were asked for later than that were looked at, newest first.
        stopped: there are more of them than may be looked at.
        expired: jobs whose records are gone: only their heads stay.
    """

    by: str
    since: float
    groups: dict[str, Group] = field(default_factory=dict)
    total: Group = field(default_factory=Group)
    stopped: bool = False
    expired: int = 0

    def of(self, key: str) -> Group:
        """The group of this name."""
        return self.groups.setdefault(key, Group())


@dataclass(slots=True)
class _Read:
    """One job, read."""

    head: Head
    calls: list[Call]
    units: Units
    expired: bool


def read(by: str, since: float, most: int, memory: Memory, tenant: str | None = None) -> Costs:
    """What the jobs cost that were asked for since then.

    Args:
        by: one of AXES.
        most: how many jobs are looked at.
        memory: MB of a function, by its name.
        tenant: only the jobs of this one.
    """
    costs = Costs(by, since)
    ids = list(islice(recent(since, most + 1), most + 1))
    costs.stopped = len(ids) > most
    capped = lru_cache(maxsize=None)(_capped)
    for job_id in ids[:most]:
        if tenant is not None and not _is_of(job_id, tenant):
            continue
        found = _job(job_id, memory, capped)
        if found is not None:
            _add(costs, found)
    return costs


def recent(since: float, most: int) -> Iterator[str]:
    """Ids of the jobs that were asked for since then, newest first; at most so many of each shard of the index."""
    shards = (
        table.query_index(
            "list",
            Key("list_shard").eq(f"JOB#{n}") & Key("listed_at").gte(since),
            newest_first=True,
            limit=most,
        )
        for n in range(keys.SHARDS)
    )
    keyed = merge(*shards, key=lambda item: -item["listed_at"])
    return (str(item["pk"]).removeprefix("JOB#") for item in keyed)


def day(moment: float) -> str:
    """The day of a moment, in UTC."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


@lru_cache(maxsize=1)
def memories() -> Memory:
    """MB of each function as template.yaml says; of one that it does not know, the most that it gives any."""
    from local.template import load

    functions = load(Path(__file__).resolve().parent.parent / "template.yaml").functions.values()
    known = {function.name: function.memory for function in functions}
    return lambda name: known.get(name, max(known.values()))


def _add(costs: Costs, found: _Read) -> None:
    head = found.head
    of_job = {"flow": head.flow or "(none)", "tenant": head.tenant, "day": day(head.created)}
    groups = [costs.total]
    if costs.by in OF_JOBS:
        groups.append(costs.of(of_job[costs.by]))
    costs.expired += found.expired
    for group in groups:
        group.add_job(found.units)
    for call in found.calls:
        of_call = {"agent": call.agent, "model": call.model}
        key = {**of_job, **of_call}[costs.by]
        for group in (costs.total, costs.of(key)):
            group.usage.add(call)


def _is_of(job_id: str, tenant: str) -> bool:
    head = table.get(keys.head(job_id))
    return head is not None and head["tenant"] == tenant


def _capped(tenant: str, month: str) -> bool:
    return table.get(keys.tenant_budget(tenant, month)) is not None


def _job(job_id: str, memory: Memory, capped: Callable[[str, str], bool]) -> _Read | None:
    items = list(table.query(keys.job(job_id)))
    head = next((Head.from_item(item) for item in items if item["sk"] == "JOB"), None)
    if head is None:
        return None
    booked = capped(head.tenant, day(head.created)[:7])
    results = [item for item in items if item["sk"].startswith("RESULT#")]
    found = _Read(head, _calls(items), Units(), expired=not results)
    found.units.add(bill.of_job(head, items, memory, capped=booked))
    for item in results:
        split, attempt = item["sk"].split("#")[1:3]
        if item.get("split") and head.won.get(split) == int(attempt):
            _fan_out(found, split, item, results, memory, capped=booked)
    return found


def _fan_out(
    found: _Read, split: str, item: Item, results: list[Item], memory: Memory, *, capped: bool
) -> None:
    sizes: list[int] = []
    for items in partitions(found.head, split):
        found.calls += _calls(items)
        found.units.add(bill.of_range(items, item.get("over", ""), memory, capped=capped))
        sizes.append(sum(item_size(each) for each in items if each["sk"].startswith("PART#")))
    found.units.add(bill.of_split(sizes))
    if f"{split}:join" in found.head.won:
        found.units.add(bill.of_join(results, item, sizes))


def _calls(items: list[Item]) -> list[Call]:
    return [call for _, _, call in calls_in(items)]
