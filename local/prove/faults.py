"""What can go wrong in a run, and how it is written down: `die-after:act:7+twice:act:1` is a schedule of two faults.

Calls and messages are numbered from 1 by function, in the order in which the run makes or takes them. Up to the first
fault a run does what the undisturbed one does, so its numbers are those.
"""

import re
from dataclasses import dataclass

# At the n-th call (of AWS or of the model) of a function.
AT_CALLS = ("die-before", "die-after", "stall", "throttle", "lose", "lose-all")
# At those of them that send a batch.
AT_BATCHES = ("part",)
# With the n-th message that a function takes.
WITH_MESSAGES = ("twice", "late", "batch", "swap", "meet")
ABOUT = {
    "die-before": "the process dies just before a call",
    "die-after": "the process dies just after a call took effect",
    "stall": "a worker stops before a call until others have taken over, then goes on",
    "throttle": "AWS or the model says that it is too busy, as often as it is asked within a call",
    "lose": "a call takes effect, and the first answer does not arrive",
    "lose-all": "a call takes effect, and no answer arrives however often it is repeated",
    "part": "of a batch, one message is accepted",
    "twice": "a message is delivered again right after",
    "late": "a message is delivered again when all is done",
    "batch": "a message is twice in one batch",
    "swap": "the next message is first, or this one comes again after it",
    "meet": "two deliveries of a message at once, their calls interleaved",
}
_WRITTEN = re.compile(
    r"(?P<kind>[a-z-]+):(?P<function>\w+):(?P<number>[1-9]\d*)(:(?P<order>[abAB]*))?"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        order: of `meet`: who makes the next call, the first delivery (a) or the second (b); a capital goes on to its
            end. Then what is left of the first runs, then of the second.
    """

    kind: str
    function: str
    number: int
    order: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.function}:{self.number}" + (
            f":{self.order}" if self.order else ""
        )


Schedule = tuple[Fault, ...]


def read(text: str) -> Schedule:
    """A schedule as it is written.

    Raises:
        ValueError: says what is wrong with it.
    """
    return tuple(_fault(part) for part in text.split("+"))


def write(schedule: Schedule) -> str:
    """The schedule as `read` takes it."""
    return "+".join(map(str, schedule)) or "nothing"


def _fault(text: str) -> Fault:
    match = _WRITTEN.fullmatch(text)
    if not match or match["kind"] not in ABOUT:
        raise ValueError(
            f"{text!r} is no fault: write KIND:FUNCTION:N, KIND one of {', '.join(ABOUT)}"
        )
    if match["order"] and match["kind"] != "meet":
        raise ValueError(f"{text!r}: only meet has an order of calls")
    return Fault(match["kind"], match["function"], int(match["number"]), match["order"] or "")
