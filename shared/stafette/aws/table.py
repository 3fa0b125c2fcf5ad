"""The one door to DynamoDB: conversion, aliases, conditions. It knows no key and no rule of the protocol."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from boto3.dynamodb.conditions import Attr, ConditionBase, ConditionExpressionBuilder
from boto3.dynamodb.conditions import Key as KeyCondition
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer

from stafette import settings
from stafette.aws import clients
from stafette.aws.failures import FAILED_CALLS, code, translated
from stafette.aws.keys import Key
from stafette.core.numbers import empty_set, from_stored, to_stored

Item = dict[str, Any]
Path = str | tuple[str, str]

_serialize = TypeSerializer().serialize
_deserialize = TypeDeserializer().deserialize


class ConditionFailedError(Exception):
    """The stored item was not as the write required; `old` is what stands there, None if nothing does."""

    def __init__(self, old: Item | None) -> None:
        super().__init__("the condition of the write does not hold")
        self.old = old


def put(key: Key, item: Mapping[str, Any], when: ConditionBase | None = None) -> None:
    """Puts a whole item.

    Raises:
        ConditionFailedError: `when` does not hold; it carries the stored item.
    """
    expression = _Expression()
    _write(
        "put_item",
        Item=_to_attributes({**_key(key), **item}),
        **expression.condition(when),
        **expression.placeholders(),
    )


def put_if_absent(key: Key, item: Mapping[str, Any]) -> Item | None:
    """Puts an item unless one stands there. Returns None when it was put, else the item that stands."""
    try:
        put(key, item, Attr("pk").not_exists())
    except ConditionFailedError as lost:
        return lost.old or {}
    return None


def update(
    key: Key,
    *,
    sets: Mapping[Path, Any] | None = None,
    adds: Mapping[Path, Any] | None = None,
    removes: tuple[Path, ...] = (),
    when: ConditionBase | None = None,
) -> Item:
    """Changes an item in one write and returns it as it is afterwards.

    A path is an attribute, or (map, member). Setting an empty set removes the attribute.

    Raises:
        ConditionFailedError: `when` does not hold; it carries the stored item.
    """
    expression = _Expression()
    sets = dict(sets or {})
    gone = [*removes, *(path for path, value in sets.items() if empty_set(value))]
    clauses = {
        "SET": [
            f"{expression.name(p)} = {expression.value(v, p)}"
            for p, v in sets.items()
            if not empty_set(v)
        ],
        "ADD": [
            f"{expression.name(p)} {expression.value(v, p)}"
            for p, v in (adds or {}).items()
            if not empty_set(v)
        ],
        "REMOVE": [expression.name(p) for p in gone],
    }
    answer = _write(
        "update_item",
        Key=_to_attributes(_key(key)),
        UpdateExpression=" ".join(
            f"{verb} {', '.join(parts)}" for verb, parts in clauses.items() if parts
        ),
        ReturnValues="ALL_NEW",
        **expression.condition(when),
        **expression.placeholders(),
    )
    return _from_attributes(answer["Attributes"])


def get(key: Key) -> Item | None:
    """One item, read consistently."""
    try:
        answer = clients.dynamodb().get_item(
            TableName=settings.table(), Key=_to_attributes(_key(key)), ConsistentRead=True
        )
    except FAILED_CALLS as error:
        raise translated(error) from error
    return _from_attributes(answer["Item"]) if "Item" in answer else None


def query(pk: str, prefix: str = "") -> Iterator[Item]:
    """The items of a partition whose sort key starts with `prefix`, in order, one page in memory at a time."""
    condition: ConditionBase = KeyCondition("pk").eq(pk)
    if prefix:
        condition = condition & KeyCondition("sk").begins_with(prefix)
    return _pages(condition, ConsistentRead=True)


def newest(pk: str, most: int | None = None) -> Iterator[Item]:
    """The items of a partition from its last sort key on, so many at most: then it is one request, and half its price,
    for it may miss what was written just now."""
    limit = {} if most is None else {"Limit": most}
    found = _pages(KeyCondition("pk").eq(pk), ScanIndexForward=False, **limit)
    return islice(found, most)


def query_index(
    index: str, condition: ConditionBase, *, newest_first: bool = False, limit: int = 100
) -> list[Item]:
    """Keys of at most `limit` items from a sparse index, which lags a little behind the table."""
    found: list[Item] = []
    for item in _pages(condition, IndexName=index, ScanIndexForward=not newest_first, Limit=limit):
        found.append(item)
        if len(found) == limit:
            break
    return found


def _pages(condition: ConditionBase, **options: Any) -> Iterator[Item]:
    expression = _Expression()
    request: dict[str, Any] = {
        "TableName": settings.table(),
        "KeyConditionExpression": expression.build(condition, is_key=True),
        **options,
        **expression.placeholders(),
    }
    while True:
        try:
            page = clients.dynamodb().query(**request)
        except FAILED_CALLS as error:
            raise translated(error) from error
        yield from (_from_attributes(item) for item in page["Items"])
        if "LastEvaluatedKey" not in page:
            return
        request["ExclusiveStartKey"] = page["LastEvaluatedKey"]


class _Expression:
    """Every name is an alias and every value a placeholder, so no reserved word can ever meet the service."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def name(self, path: Path) -> str:
        return ".".join(self._alias(part) for part in ((path,) if isinstance(path, str) else path))

    def _alias(self, name: str) -> str:
        alias = f"#u{len(self._names)}"
        self._names[alias] = name
        return alias

    def value(self, value: Any, path: Path) -> str:
        placeholder = f":u{len(self._values)}"
        self._values[placeholder] = _serialize(
            to_stored(value, path if isinstance(path, str) else ".".join(path))
        )
        return placeholder

    def build(self, condition: ConditionBase, *, is_key: bool = False) -> str:
        built = ConditionExpressionBuilder().build_expression(condition, is_key_condition=is_key)
        self._names.update(built.attribute_name_placeholders)
        values = built.attribute_value_placeholders
        self._values.update(
            {name: _serialize(to_stored(value, "condition")) for name, value in values.items()}
        )
        return built.condition_expression

    def condition(self, condition: ConditionBase | None) -> dict[str, Any]:
        if condition is None:
            return {}
        return {
            "ConditionExpression": self.build(condition),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def placeholders(self) -> dict[str, Any]:
        return {
            **({"ExpressionAttributeNames": self._names} if self._names else {}),
            **({"ExpressionAttributeValues": self._values} if self._values else {}),
        }


def _write(operation: str, **request: Any) -> Any:
    try:
        return getattr(clients.dynamodb(), operation)(TableName=settings.table(), **request)
    except FAILED_CALLS as error:
        if code(error) == "ConditionalCheckFailedException":
            old: Any = getattr(error, "response", {}).get("Item")
            raise ConditionFailedError(_from_attributes(old) if old else None) from error
        raise translated(error) from error


def _key(key: Key) -> Item:
    for name, value in zip(("pk", "sk"), key, strict=True):
        if not value:
            raise ValueError(f"the key attribute {name} is empty")
    return {"pk": key[0], "sk": key[1]}


def _to_attributes(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _serialize(value) for name, value in to_stored(item).items()}


def _from_attributes(item: Mapping[str, Any]) -> Item:
    return {name: from_stored(_deserialize(value)) for name, value in item.items()}
