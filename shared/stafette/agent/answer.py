"""A model's answer becomes a value, or an error that says what happens to the work.

How the answer ended is judged before what it says: a refusal or half an answer is never parsed.
"""

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

from anthropic import transform_schema
from anthropic.types import Message, OutputConfigParam
from pydantic import BaseModel, ValidationError

from stafette.core.body import whole_text
from stafette.core.errors import PermanentError, TransientError

T = TypeVar("T", bound=BaseModel)

_WHOLE = {"end_turn", "stop_sequence"}
_CUT = {"max_tokens", "model_context_window_exceeded"}


@lru_cache(maxsize=256)
def output_format(answer: type[BaseModel]) -> OutputConfigParam:
    """What to ask for, so that the answer fits the model `answer`.

    Bounds that the service does not compile are moved into descriptions; they are checked when the answer is read.
    """
    return {"format": {"type": "json_schema", "schema": transform_schema(answer)}}


def read(message: Message, answer: type[T]) -> T:
    """The value that a message holds.

    Raises:
        PermanentError: `refused`, `output_truncated`, or the name of a way to stop that has no meaning here.
        TransientError: `invalid_answer`: it is not JSON, does not fit, or holds a number that is not finite.
    """
    check_stop(message)
    text = "".join(block.text for block in message.content if block.type == "text")
    try:
        # Cleaned as data: half a surrogate pair hides in an escape until the JSON is read.
        value = answer.model_validate_json(json.dumps(cleaned(json.loads(text))))
    except ValidationError as exc:
        # Where and what kind, never the value: the detail is logged, and an answer must not be.
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['type']}" for fault in exc.errors()]
        raise TransientError(
            f"the answer does not fit: {', '.join(faults)}", reason="invalid_answer"
        ) from None
    except (ValueError, RecursionError) as exc:
        raise TransientError("the answer is not JSON", reason="invalid_answer") from exc
    if place := next(_not_finite(value.model_dump(), ""), None):
        raise TransientError(
            f"the answer does not fit: {place}: not finite", reason="invalid_answer"
        )
    return value


def check_stop(message: Message) -> None:
    """Raises unless the message ended as a whole answer does; see `read`."""
    stop = str(message.stop_reason or "no_stop_reason")
    if stop == "refusal":
        category = getattr(message.stop_details, "category", None)
        raise PermanentError(f"the model refused ({category or 'no category'})", reason="refused")
    if stop in _CUT:
        raise PermanentError(f"the answer was cut off: {stop}", reason="output_truncated")
    if stop not in _WHOLE:
        raise PermanentError(f"the model stopped for {stop!r}", reason=stop)


def cleaned(value: Any) -> Any:
    """The same JSON value with every unpaired surrogate replaced by U+FFFD; pairs become one character."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(name): cleaned(item) for name, item in value.items()}
    return value


def _not_finite(value: Any, place: str) -> Iterator[str]:
    """The places in a dumped value that hold NaN or an infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _not_finite(item, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list | tuple | set):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{place}.{index}".lstrip("."))
