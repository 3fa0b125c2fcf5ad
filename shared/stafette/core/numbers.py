"""Numbers and text as DynamoDB and JSON carry them: exact, finite, and back as they went in."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from stafette.core.errors import NotFiniteError


def to_stored(value: Any, path: str = "") -> Any:
    """A value as DynamoDB takes it: floats become the Decimal of their shortest text, empty sets vanish from maps.

    Raises:
        NotFiniteError: for NaN and infinities, with the path of the attribute.
    """
    match value:
        case bool() | None | str() | bytes() | int():
            return value
        case float():
            if not math.isfinite(value):
                raise NotFiniteError(f"{path or 'value'} is {value}")
            return Decimal(str(value))
        case Decimal():
            if not value.is_finite():
                raise NotFiniteError(f"{path or 'value'} is {value}")
            return value
        case Mapping():
            return {
                k: to_stored(v, f"{path}.{k}" if path else str(k))
                for k, v in value.items()
                if not empty_set(v)
            }
        case set() | frozenset():
            if not value:
                raise TypeError(f"{path or 'value'} is an empty set where it cannot be left out")
            return {to_stored(v, f"{path}{{}}") for v in value}
        case list() | tuple():
            return [to_stored(v, f"{path}[{i}]") for i, v in enumerate(value)]
    raise TypeError(
        f"{path or 'value'} has type {type(value).__name__}, which the table does not hold"
    )


def empty_set(value: Any) -> bool:
    """DynamoDB has no empty sets: they are stored by leaving the attribute out."""
    return isinstance(value, set | frozenset) and not value


def from_stored(value: Any) -> Any:
    """What the table gave back: whole numbers as int, other Decimals as they are (money and costs stay exact)."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() else value
        case dict():
            return {k: from_stored(v) for k, v in value.items()}
        case set():
            return {from_stored(v) for v in value}
        case list():
            return [from_stored(v) for v in value]
    return value


def item_size(item: Mapping[str, Any]) -> int:
    """Bytes of an item by the service's rules: UTF-8 of names and values, with the overhead of lists and maps.

    Source: "DynamoDB item sizes and formats" in the developer guide. A number counts one byte per two
    significant digits, plus one, plus one for a sign.
    """
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(value: Any) -> int:
    match value:
        case None | bool():
            return 1
        case str():
            return len(value.encode())
        case bytes():
            return len(value)
        case int() | float() | Decimal():
            number = Decimal(str(value))
            # Not `normalize`, which rounds to 28 digits: the table holds 38.
            digits = len("".join(map(str, number.as_tuple().digits)).strip("0")) or 1
            return min(21, (digits + 1) // 2 + 1 + (number < 0))
        case Mapping():
            return 3 + sum(1 + len(k.encode()) + _size(v) for k, v in value.items())
        case list() | tuple():
            return 3 + sum(1 + _size(v) for v in value)
        case set() | frozenset():
            return sum(_size(v) for v in value)
    raise TypeError(f"{type(value).__name__} has no size in the table")
