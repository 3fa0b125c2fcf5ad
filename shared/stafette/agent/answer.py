"""A model's answer becomes a value that may be used, or an error that says what is wrong with it.

How the answer ended is judged before what it says: a refusal or half an answer is never parsed. Then it is judged by
its schema, by the check that a call declares, and by how sure it is.
"""

import json
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from anthropic import transform_schema
from anthropic.types import Message, OutputConfigParam
from pydantic import BaseModel, ValidationError

from stafette.agent.schema import check_schema
from stafette.core.body import whole_text
from stafette.core.errors import PermanentError, TransientError

T = TypeVar("T", bound=BaseModel)

_WHOLE = {"end_turn", "stop_sequence"}
_CUT = {"max_tokens", "model_context_window_exceeded"}
# Characters of a sentence of a check that are kept.
_MOST_SAID = 500

# What a call may say of an answer that fits its schema: None, or a sentence of what is wrong with it. Pure.
Check = Callable[[T], str | None]


class RejectedError(TransientError):
    """An answer came whole, was paid for, and may not be used.

    Its text says where and what kind, never the value: it is logged, and an answer must not be. `said` is the answer.
    """

    reason = "invalid_answer"

    def __init__(self, fault: str, *, reason: str | None = None, said: str = "") -> None:
        super().__init__(fault, reason=reason)
        self.said = said


# The reasons of a RejectedError.
INVALID, CHECK_FAILED, LOW_CONFIDENCE = "invalid_answer", "check_failed", "low_confidence"
REJECTED = (INVALID, CHECK_FAILED, LOW_CONFIDENCE)


@lru_cache(maxsize=256)
def output_format(answer: type[BaseModel]) -> OutputConfigParam:
    """What to ask for, so that the answer fits the model `answer`.

    Bounds that the service does not compile are moved into descriptions; they are checked when the answer is read.

    Raises:
        PermanentError: `schema_unsupported`: the service would refuse it; says which field and why.
    """
    check_schema(answer)
    return {"format": {"type": "json_schema", "schema": transform_schema(answer)}}


def judge(value: T, check: Check[T] | None, floor: float | None) -> T:
    """The value, if it may be used.

    Args:
        check: what the call says of it.
        floor: the least confidence that it needs, in its field of that name.

    Raises:
        RejectedError: `check_failed` or `low_confidence`.
        PermanentError: `no_confidence`: there is a floor, and answers of this model have no such field.
    """
    if check is not None and (fault := check(value)):
        raise RejectedError(whole_text(fault)[:_MOST_SAID], reason=CHECK_FAILED)
    if floor is None:
        return value
    sure = getattr(value, "confidence", None)
    if not isinstance(sure, int | float):
        raise PermanentError(
            f"the agent has a confidence floor, and {type(value).__name__} has no field confidence",
            reason="no_confidence",
        )
    if sure < floor:
        raise RejectedError(f"confidence {sure:.2f} is under {floor:.2f}", reason=LOW_CONFIDENCE)
    return value


def text_of(message: Message) -> str:
    """The text of a message, thinking and tool calls aside."""
    return "".join(block.text for block in message.content if block.type == "text")


def read(message: Message, answer: type[T]) -> T:
    """The value that a message holds.

    Raises:
        PermanentError: `refused`, `output_truncated`, or the name of a way to stop that has no meaning here.
        RejectedError: `invalid_answer`: it is not JSON, does not fit, or holds a number that is not finite.
    """
    check_stop(message)
    text = text_of(message)
    try:
        # Cleaned as data: half a surrogate pair hides in an escape until the JSON is read. Strictly: `true` is no
        # confidence of 1.
        value = answer.model_validate_json(json.dumps(cleaned(json.loads(text))), strict=True)
    except ValidationError as exc:
        # Where and what kind, never the value: the detail is logged, and an answer must not be.
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['type']}" for fault in exc.errors()]
        raise RejectedError(f"the answer does not fit: {', '.join(faults)}") from None
    except (ValueError, RecursionError) as exc:
        raise RejectedError("the answer is not JSON") from exc
    if place := next(_not_finite(value.model_dump(), ""), None):
        raise RejectedError(f"the answer does not fit: {place}: not finite")
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
