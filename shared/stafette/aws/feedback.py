"""What people said of finished jobs: requests with the agent that each was for, by tenant, one item each time.

Nothing is changed afterwards: of several that speak of one job, the latest counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from stafette import clock
from stafette.aws import keys, table
from stafette.aws.store import expires

# How many are looked at for a request that is to be routed: one query, of a few KB.
NEWEST = 20


@dataclass(frozen=True, slots=True)
class Feedback:
    """What somebody said of one job.

    Attributes:
        tenant: whose job it was; nobody else's requests are routed by it.
        job_id: the job, whose first result is the whole request.
        text: the request as the router is shown it.
        decided: the agent that it went to, or `none`.
        agent: the agent that it should have gone to, or `none`.
        by: who says so.
        at: when, in seconds since the epoch.
    """

    tenant: str
    job_id: str
    text: str
    decided: str
    agent: str
    by: str
    at: float

    @property
    def right(self) -> bool:
        """Whether the job had gone where it should."""
        return self.decided == self.agent


_KEPT = ("job_id", "text", "decided", "agent", "by", "at")


def give(said: Feedback) -> None:
    """Keeps what somebody said, as long as results are kept."""
    item = {name: value for name, value in asdict(said).items() if name in _KEPT}
    key = keys.feedback(said.tenant, said.at, said.job_id)
    table.put(key, {**item, "expires": expires()})


def newest(tenant: str, most: int = NEWEST) -> list[Feedback]:
    """Of the newest so many that people of a tenant said, what counts; newest first. One query."""
    return list(_counting(tenant, table.newest(keys.feedback_of(tenant), most)))


def every(tenant: str) -> list[Feedback]:
    """What counts of all that people of a tenant said, newest first."""
    return list(_counting(tenant, table.newest(keys.feedback_of(tenant))))


def _counting(tenant: str, items: Iterable[table.Item]) -> Iterator[Feedback]:
    seen: set[str] = set()
    for item in items:
        if item["job_id"] not in seen and item["expires"] > clock.now():
            seen.add(item["job_id"])
            known = {name: item[name] for name in _KEPT}
            yield Feedback(tenant, **known | {"at": float(item["at"])})
