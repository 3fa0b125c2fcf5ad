"""Heads whose job is over for so long that all else of it has expired. They stay, cut down, so that the same request is
the same job for ever."""

from collections.abc import Iterator
from contextlib import suppress

from boto3.dynamodb.conditions import Attr, Key

from stafette import settings
from stafette.aws import keys, table
from stafette.aws.table import ConditionFailedError
from stafette.core import job
from stafette.core.job import Status

# Of each shard at a time: who calls once a minute cuts hundreds of thousands a day.
_AT_ONCE = 25
_ENDED = [status.value for status in Status if status.ended]
# What a head says of work to be done, and what lists it.
_LET_GO = (
    *("next", "handoff", "over", "parts", "form", "asked", "detail"),
    *("owner", "lease", "not_before", "due", "due_shard", "list_shard", "listed_at"),
)


def outlived(now: float) -> Iterator[str]:
    """The ids of listed jobs that began so long ago that what was written then has expired, oldest first."""
    before = _cutoff(now)
    for number in range(keys.SHARDS):
        condition = Key("list_shard").eq(f"JOB#{number}") & Key("listed_at").lte(before)
        for item in table.query_index("list", condition, limit=_AT_ONCE):
            yield item["pk"].removeprefix("JOB#")


def cut(job_id: str, now: float) -> bool:
    """Cuts the head of a job down and takes it off the list. False if something of it was written since."""
    before = _cutoff(now)
    with suppress(ConditionFailedError):
        table.update(
            keys.head(job_id),
            sets={"expired": now},
            removes=_LET_GO,
            when=Attr("status").is_in(_ENDED)
            & Attr("moved").lte(before)
            & (Attr("ended").not_exists() | Attr("ended").lte(before))
            & Attr("v").lte(job.VERSION),
        )
        return True
    return False


def _cutoff(now: float) -> float:
    return now - job.LONGEST_LIFE - settings.retention()
