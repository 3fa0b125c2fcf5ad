"""The body of a queue message as strangers send it: JSON, strictly, out of the envelopes of SNS and EventBridge."""

import json
import math
import re
from typing import Any

from stafette.core.errors import RefusedError

MOST_NESTING = 100
_SNS = re.compile(r"arn:aws[a-z-]*:sns:")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def open_body(body: str) -> dict[str, Any] | None:
    """The JSON object that a body carries; None for a service's test message, which is about nothing.

    A body that was encoded twice is decoded twice; an envelope is opened at most once.

    Raises:
        RefusedError: with reason `not_json`, `too_deep`, `not_finite`, `lone_surrogate` or `not_an_object`.
    """
    value = read_json(body)
    if isinstance(value, str):
        value = read_json(value)
    if _is_sns(value):
        value = read_json(value["Message"])
    elif _is_event(value):
        value = value["detail"]
    if not isinstance(value, dict):
        raise RefusedError(f"the body is {_kind(value)}, not an object", reason="not_an_object")
    if _is_service_test(value):
        return None
    return value


def read_json(text: str) -> Any:
    """JSON that everything downstream can carry: finite numbers, whole characters, bounded nesting.

    Raises:
        RefusedError: with what is wrong and where.
    """
    try:
        value = json.loads(text)  # takes NaN and infinities, which `_check` refuses by their place
    except RecursionError as error:
        raise RefusedError("the body is nested too deeply", reason="too_deep") from error
    except ValueError as error:
        raise RefusedError(f"the body is not JSON: {error}", reason="not_json") from error
    _check(value, "$", 0)
    return value


def has_halves(text: str) -> bool:
    """Whether text holds surrogates, which can be neither encoded, hashed nor sent."""
    return bool(_SURROGATE.search(text))


def whole_text(text: str) -> str:
    """Text with every lone surrogate replaced by U+FFFD, and pairs joined: fit to be encoded, hashed and sent."""
    if not has_halves(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _check(value: Any, path: str, depth: int) -> None:
    if depth > MOST_NESTING:
        raise RefusedError(
            f"nested more than {MOST_NESTING} deep at {path[:80]}", reason="too_deep"
        )
    match value:
        case float() if not math.isfinite(value):
            raise RefusedError(f"{path} is not a finite number", reason="not_finite")
        case str() if _SURROGATE.search(value):
            raise RefusedError(f"{path} holds half a character", reason="lone_surrogate")
        case dict():
            for key, member in value.items():
                _check(key, f"{path}.key", depth)
                _check(member, f"{path}.{key}", depth + 1)
        case list():
            for index, member in enumerate(value):
                _check(member, f"{path}[{index}]", depth + 1)


def _is_sns(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("Type") == "Notification"
        and isinstance(value.get("TopicArn"), str)
        and bool(_SNS.match(value["TopicArn"]))
        and isinstance(value.get("Message"), str)
    )


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and {"detail-type", "source", "detail"} <= value.keys()


def _is_service_test(value: dict[str, Any]) -> bool:
    return value.get("Event") == "s3:TestEvent" and value.get("Service") == "Amazon S3"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "an array"
        case str():
            return "text"
    return "a number or a truth value"
