"""The schema of the one table: every key that is ever written (ARCHITECTURE.md has the page with the attributes)."""

from hashlib import sha256

from stafette.core.joins import range_of
from stafette.core.run import Run

Key = tuple[str, str]

# Rows of the two sparse indexes are spread over so many partitions that none is hot.
SHARDS = 8


def index_shard(kind: str, of: str) -> str:
    """The partition of a sparse index that an id belongs to: stable for ever."""
    return f"{kind}#{sha256(of.encode()).digest()[0] % SHARDS}"


def job(job_id: str) -> str:
    """Partition of a job."""
    return f"JOB#{job_id}"


def head(job_id: str) -> Key:
    """The head of a job."""
    return job(job_id), "JOB"


def result(job_id: str, handoff: str, attempt: int) -> Key:
    """What one attempt at one handoff came to."""
    return job(job_id), f"RESULT#{handoff}#{attempt:04d}"


def event(job_id: str, handoff: str, n: int) -> Key:
    """Entry n, from 1, of the journal of a handoff."""
    return job(job_id), f"EVENT#{handoff}#{n:04d}"


def parts(job_id: str, split: str, range_no: int) -> str:
    """Partition of one range of a fan-out: its parts, its shard of the join, its model calls."""
    return f"{job(job_id)}#{split}#{range_no:03d}"


def part(job_id: str, split: str, index: int) -> Key:
    """One part, by its position from 0."""
    return parts(job_id, split, range_of(index)), f"PART#{index:05d}"


def join_shard(job_id: str, split: str, range_no: int, generation: int) -> Key:
    """The counter of one range and the memory of who was counted. Each opening of a job counts afresh."""
    return parts(job_id, split, range_no), _join(generation)


def join(job_id: str, split: str, generation: int) -> Key:
    """The counter of the ranges that are full."""
    return f"{job(job_id)}#{split}", _join(generation)


def _join(generation: int) -> str:
    return f"JOIN#{generation}" if generation else "JOIN"


def call(run: Run, n: int) -> Key:
    """Model call n, from 1, of one attempt; beside the part that made it, or beside the head."""
    pk = job(run.job_id)
    if run.part is not None:
        pk = parts(run.job_id, run.handoff.split(":")[0], range_of(run.part))
    return pk, f"CALL#{run.handoff}#{run.attempt:04d}#{n:03d}"


def effect(job_id: str, name: str) -> Key:
    """The one record of an effect. No module or function name in it: a refactoring must not repeat an effect."""
    return job(job_id), f"EFFECT#{name}"


def form(job_id: str, form_id: str) -> Key:
    """A question to a person."""
    return job(job_id), f"FORM#{form_id}"


def dead(record_id: str) -> Key:
    """A body that nobody could take."""
    return f"DEAD#{record_id}", "DEAD"


def budget(job_id: str) -> Key:
    """What a job has spent and reserved."""
    return job(job_id), "BUDGET"


def tenant_budget(tenant: str, month: str) -> Key:
    """What a tenant has spent and reserved in a month, `2026-11`."""
    return f"TENANT#{tenant}", f"BUDGET#{month}"


def feedback_of(tenant: str) -> str:
    """Partition of what people of a tenant said of finished jobs."""
    return f"FEEDBACK#{tenant}"


def feedback(tenant: str, at: float, job_id: str) -> Key:
    """What was said of a job at a time; sorted by that."""
    return feedback_of(tenant), f"{at:017.6f}#{job_id}"


def limit(model: str) -> Key:
    """What all workers know of a model."""
    return f"LIMIT#{model}", "LIMIT"


def cache(digest: str) -> Key:
    """An answer that is given again."""
    return f"CACHE#{digest}", "CACHE"
