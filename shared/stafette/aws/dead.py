"""Bodies that nobody could take: kept whole, with the reason, and listed until somebody redrives them."""

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any

from boto3.dynamodb.conditions import Key

from stafette import trace
from stafette.aws import keys, table
from stafette.aws.store import expires, loaded_value, stored_value
from stafette.aws.table import Item


def keep(
    record_id: str,
    body: str,
    *,
    function: str,
    reason: str,
    detail: str,
    at: float,
    origin: str,
    tenant: str = "default",
    job_id: str | None = None,
) -> None:
    """Keeps a body. The same message is kept once, under the first reason.

    Args:
        record_id: the id of the message.
        function: the function whose queue it came from, and is redriven to.
        origin: the id of the message that the body first came in, if it has been redriven before.
    """
    item: dict[str, Any] = {
        **stored_value(body, "dead"),
        "id": record_id,
        "function": function,
        "reason": reason,
        "detail": detail[-4000:],
        "at": at,
        "origin": origin,
        "tenant": tenant,
        "list_shard": keys.index_shard("DEAD", record_id),
        "listed_at": at,
        "expires": expires(),
    }
    if job_id:
        item["job_id"] = job_id
    if table.put_if_absent(keys.dead(record_id), item) is None:
        trace.info(
            "kept a dead message", id=record_id, function=function, reason=reason, job_id=job_id
        )
        trace.count("DeadRecords")


def find(record_id: str) -> Item | None:
    """One record, with its `body`."""
    item = table.get(keys.dead(record_id))
    return {**item, "body": loaded_value(item)} if item else None


def newest(limit: int = 100) -> list[Item]:
    """The records that wait for somebody, newest first."""
    return listed("DEAD", limit)


def listed(kind: str, limit: int) -> list[Item]:
    """Whole items from the index of what is listed: `DEAD` records or `JOB` heads, newest first."""
    shards = [
        table.query_index(
            "list", Key("list_shard").eq(f"{kind}#{n}"), newest_first=True, limit=limit
        )
        for n in range(keys.SHARDS)
    ]
    keyed: Iterator[Item] = merge(*shards, key=lambda item: -item["listed_at"])
    found = (table.get((item["pk"], item["sk"])) for item in islice(keyed, limit))
    return [item for item in found if item and "list_shard" in item]


def settle(record_id: str, at: float) -> None:
    """Takes a record that was redriven off the list; it stays readable until it expires."""
    table.update(keys.dead(record_id), sets={"redriven": at}, removes=("list_shard", "listed_at"))
