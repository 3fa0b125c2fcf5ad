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

    def count_job(self, head: Head, units: Units) -> None:
        """Counts a job, and what it used of AWS."""
        groups = [self.total]
        if self.by in OF_JOBS:
            groups.append(self._group(head, None))
        for group in groups:
            group.add_job(units)

    def count_calls(self, head: Head, items: list[Item]) -> None:
        """Counts the model calls of a job among some items of it."""
        for _, _, call in calls_in(items):
            for group in (self.total, self._group(head, call)):
                group.usage.add(call)

    def _group(self, head: Head, call: Call | None) -> Group:
        names = {"flow": head.flow or "(none)", "tenant": head.tenant, "day": day(head.created)}
        if call is not None:
            names |= {"agent": call.agent, "model": call.model}
        return self.groups.setdefault(names[self.by], Group())


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
        _count(costs, job_id, memory, capped)
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


def _count(costs: Costs, job_id: str, memory: Memory, capped: Callable[[str, str], bool]) -> None:
    """Counts a job. Of its parts, one range is in memory at a time."""
    items = list(table.query(keys.job(job_id)))
    head = next((Head.from_item(item) for item in items if item["sk"] == "JOB"), None)
    if head is None:
        return
    booked = capped(head.tenant, day(head.created)[:7])
    results = [item for item in items if item["sk"].startswith("RESULT#")]
    units = bill.of_job(head, items, memory, capped=booked)
    costs.count_calls(head, items)
    for split in results:
        _, name, attempt = split["sk"].split("#")
        if not split.get("split") or head.won.get(name) != int(attempt):
            continue
        sizes: list[int] = []
        for each in partitions(head, name):
            costs.count_calls(head, each)
            units.add(bill.of_range(each, split.get("over", ""), memory, capped=booked))
            sizes.append(sum(item_size(one) for one in each if one["sk"].startswith("PART#")))
        units.add(bill.of_split(sizes))
        if f"{name}:join" in head.won:
            units.add(bill.of_join(results, split, sizes))
    costs.expired += not results
    costs.count_job(head, units)


def _is_of(job_id: str, tenant: str) -> bool:
    head = table.get(keys.head(job_id))
    return head is not None and head["tenant"] == tenant


def _capped(tenant: str, month: str) -> bool:
    return table.get(keys.tenant_budget(tenant, month)) is not None
