"""moto, made quicker, does what moto does: the same items and the same errors, update by update."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from local import quicker

UPDATES = (
    "SET a = :v",
    "SET a = :v, b = :v REMOVE c ADD n :n",
    "SET #m.#k = :v",
    "SET m.k = :v, m.l = :n",
    "SET n = n + :n, x = if_not_exists(x, :n)",
    "SET l[1] = :v REMOVE l[0], l[2]",
    "ADD s :s DELETE t :s",
    "REMOVE a, m.k, nothing",
    # What is wrong.
    "SET a = :v SET b = :v",
    "ADD n :n ADD x :n",
    "SET a = :v, a = :n",
    "SET m = :v, m.k = :v",
    "SET #a = :v, #b = :v REMOVE #a",
    "REMOVE a, a",
    "SET pk = :v",
    "SET a = b + :n",
    "SET a = n + :v",
    "SET no.where = :v",
    "SET a = :unknown",
    "SET a",
)
CONDITIONS = (
    "attribute_exists(a) AND n < :n",
    "NOT (attribute_exists(nothing)) OR begins_with(a, :v)",
    "n BETWEEN :n AND :n OR contains(s, :v)",
    "#a = :v",
)
NAMES = {"#m": "m", "#k": "k", "#a": "a", "#b": "a"}
VALUES: dict[str, Any] = {":v": {"S": "x"}, ":n": {"N": "1"}, ":s": {"SS": ["x"]}}
ITEM: dict[str, Any] = {
    "pk": {"S": "p"},
    "a": {"S": "x"},
    "c": {"S": "c"},
    "n": {"N": "1"},
    "m": {"M": {"k": {"S": "k"}}},
    "l": {"L": [{"S": "0"}, {"S": "1"}, {"S": "2"}]},
    "s": {"SS": ["x", "y"]},
    "t": {"SS": ["x", "y"]},
}


@contextmanager
def tables(*, quick: bool) -> Iterator[Any]:
    with ExitStack() as stack:
        stack.enter_context(mock_aws())
        if quick:
            for owner, name, value in quicker.replacements():
                made = name == "__deepcopy__"
                stack.enter_context(patch.object(owner, name, value, create=made))
        client = boto3.client("dynamodb", "us-east-1")
        client.create_table(
            TableName="t",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        )
        yield client


def outcomes(client: Any, update: str, condition: str | None) -> list[Any]:
    """What an item is after an update, made twice, and how the update ended."""
    client.put_item(TableName="t", Item=ITEM)
    texts = f"{update} {condition or ''}"
    given: dict[str, Any] = {
        "ExpressionAttributeNames": {k: v for k, v in NAMES.items() if k in texts},
        "ExpressionAttributeValues": {k: v for k, v in VALUES.items() if k in texts},
        "ConditionExpression": condition,
    }
    request = {name: value for name, value in given.items() if value}
    found: list[Any] = []
    for _ in range(2):
        try:
            client.update_item(
                TableName="t", Key={"pk": {"S": "p"}}, UpdateExpression=update, **request
            )
            found.append("done")
        except ClientError as error:
            found.append(str(error))
        found.append(client.get_item(TableName="t", Key={"pk": {"S": "p"}})["Item"])
    return found


@pytest.mark.parametrize(
    ("update", "condition"),
    [(update, None) for update in UPDATES] + [(UPDATES[0], each) for each in CONDITIONS],
    ids=[
        *(f"update-{n}" for n in range(len(UPDATES))),
        *(f"condition-{n}" for n in range(len(CONDITIONS))),
    ],
)
def test_update_comes_to_the_same(
    monkeypatch: pytest.MonkeyPatch, update: str, condition: str | None
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with tables(quick=False) as client:
        plain = outcomes(client, update, condition)
    with tables(quick=True) as client:
        assert outcomes(client, update, condition) == plain
