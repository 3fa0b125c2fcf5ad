"""A form: a question to a person, with a JSON Schema for the answer."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Form:
    """A question that work cannot go on without.

    Attributes:
        name: what it asks for, unique within the work that asks: the same need gives the same name, so that it is
            asked once however often the work runs.
        question: what a person has to decide, in a sentence or two.
        schema: JSON Schema of the answer, an object.
        facts: what there is to decide by, as JSON has it: the input, what was tried, what was wrong.
        scope: `work`: this work waits, the rest of the job goes on. `job`: nothing new of the job begins.
        seconds: how long a person may take.
    """

    name: str
    question: str
    schema: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    scope: Literal["work", "job"] = "work"
    seconds: float = 7 * 86_400
