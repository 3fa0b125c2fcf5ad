"""sweep: once a minute, pushes what is overdue."""

from typing import Any

from stafette import trace
from stafette.relay.recovery import sweep


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    """Looks at every overdue job and says how many it pushed or ended."""
    pushed = sweep()
    trace.count("SweptJobs", pushed)
    return {"pushed": pushed}
