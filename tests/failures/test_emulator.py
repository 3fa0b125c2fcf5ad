"""REQ-MOTO-01 to 03: where the local emulator differs from the service, nothing may rest on it."""

from decimal import Decimal
from importlib.metadata import version
from typing import Any

import pytest
from boto3.dynamodb.conditions import Attr

from stafette.aws import store, table
from stafette.core.numbers import item_size
from tests.failures.conftest import Stack
from tests.failures.test_sqs import SHIPPED

# What moto refuses, measured as serialised JSON, and what AWS refuses, in bytes of names and values.
MOTO_LIMIT = int(395.5 * 1024)
AWS_LIMIT = 400 * 1024


# --- REQ-MOTO-01 and 03 -------------------------------------------------------------------------------------


def test_there_is_no_transaction_whose_token_could_matter(stack: Stack) -> None:
    """REQ-MOTO-01, REQ-MOTO-03 cannot arise: neither in the source nor in the calls of a whole run."""
    words = ("transact_", "TransactWrite", "TransactGet", "ClientRequestToken")
    assert not [path for path in SHIPPED for word in words if word in path.read_text()]
    stack.run("r1", 3)
    made = {call.operation for call in stack.machine.calls}
    assert not [operation for operation in made if "Transact" in operation]


def test_a_counter_counts_an_action_once_under_moto_too(stack: Stack) -> None:
    """REQ-MOTO-01: correctness rests on a condition in the same write, and not on a token."""
    key, not_counted = ("TEST", "JOIN"), ~Attr("members").contains(7)
    with stack.machine.inside("bury"):
        for _ in range(2):
            try:
                item = table.update(key, adds={"completed": 1, "members": {7}}, when=not_counted)
            except table.ConditionFailedError as standing:
                item = standing.old or {}
        assert (item["completed"], item["members"]) == (1, {7})


def test_a_condition_is_part_of_the_write_that_it_guards(stack: Stack) -> None:
    """REQ-MOTO-03: all writes of a run but those of model calls, which nothing depends on, carry their condition."""
    stack.run("r1", 3)
    writes = [c for c in stack.machine.calls if c.operation in ("PutItem", "UpdateItem")]
    bare = [c for c in writes if "ConditionExpression" not in c.parameters]
    keys = [str((c.parameters.get("Key") or c.parameters["Item"])["sk"]["S"]) for c in bare]
    assert {key.split("#")[0] for key in keys} <= {"CACHE", "CALL", "EFFECT"}
    assert writes


def test_moto_is_pinned() -> None:
    """REQ-MOTO-03: at or above a version that refuses two operations on one item."""
    assert tuple(map(int, version("moto").split(".")[:3])) >= (5, 2, 5)


# --- REQ-MOTO-02 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("é" * 205_000, 410_000),
        ("😀", 4),
        (b"\x00\x01", 2),
        (True, 1),
        (None, 1),
        (7, 2),
        (27, 2),
        (-27, 3),
        (461, 3),
        (Decimal("0.25"), 2),
        (Decimal("-3.1415"), 5),
        (Decimal("1E+20"), 2),
        (int("9" * 38), 20),
        (int("-" + "9" * 38), 21),
        ([], 3),
        ({}, 3),
        (["a", "b"], 3 + 2 + 2),
        ({"k": "v"}, 3 + 1 + 1 + 1),
        ([[], {"né": [None]}], 3 + (1 + 3) + (1 + 3 + 1 + 3 + (3 + 1 + 1))),
        ({"a", "bc"}, 3),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value)[:20],
)
def test_size_follows_the_rules_of_the_service(value: Any, size: int) -> None:
    """REQ-MOTO-02: bytes of names and values in UTF-8, by a table of fixed values."""
    assert item_size({"n": value}) == len("n") + size
    assert item_size({"né": value}) == len("né".encode()) + size


@pytest.mark.parametrize("kib", [395, 396, 399])
def test_values_that_the_emulator_and_the_service_judge_differently_never_meet_either(
    stack: Stack, kib: int
) -> None:
    """REQ-MOTO-02."""
    with stack.machine.inside("bury"):
        for text in ("x" * (kib * 1024), "é" * 205_000):
            held = store.stored_value(text, "job")
            table.put(("TEST", "ITEM"), held)
            assert store.loaded_value(table.get(("TEST", "ITEM")) or {}) == text
            assert item_size(held) < 1024


def test_the_threshold_lies_far_under_both_limits() -> None:
    """REQ-MOTO-02: an item holds one such value, and JSON may double it in the emulator's count, and more."""
    assert store.VALUE_LIMIT * 6 < MOTO_LIMIT < AWS_LIMIT
