"""sweep: once a minute, pushes what is overdue and lets go of what has expired."""

from typing import Any

from stafette import trace
from stafette.relay.recovery import forget, sweep


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    """Looks at every overdue job; says how many it pushed or ended, and how many expired."""
    expired = forget()
    pushed = sweep()
    trace.count("SweptJobs", pushed)
    return {"pushed": pushed, "expired": expired}
