"""REQ-DDB-01 to 05: numbers, sets, names, sizes, and the transactions that there are none of."""

import json
import re
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from boto3.dynamodb.conditions import Attr

from local.calls import Call, Phase
from local.invocation import ProcessGone
from local.model import says
from stafette.aws import dead, keys, store, table
from stafette.aws.failures import translated
from stafette.aws.table import ConditionFailedError
from stafette.core.errors import NotFiniteError, TransientError
from stafette.core.numbers import item_size
from stafette.relay import recovery
from tests.failures.conftest import Stack, aws_error
from tests.failures.test_sqs import SHIPPED

KEY = ("TEST", "ITEM")
GIVEN = {"cost_usd": 0.1, "scores": [0.25, {"p": 30.40}], "ok": True}
STORED = {
    "cost_usd": Decimal("0.1"),
    "scores": [Decimal("0.25"), {"p": Decimal("30.4")}],
    "ok": True,
}


def _put(value: Any) -> Any:
    table.put(KEY, {"step": value})


def _put_if_absent(value: Any) -> Any:
    table.put_if_absent(KEY, {"step": value})


def _update(value: Any) -> Any:
    table.update(KEY, sets={"step": value})


def _update_member(value: Any) -> Any:
    table.put(KEY, {"step": {"other": 1}})
    for name in value:
        table.update(KEY, sets={("step", name): value[name]})
    table.update(KEY, removes=(("step", "other"),))


def _update_under_a_condition(value: Any) -> Any:
    table.put(KEY, {"step": value})
    table.update(KEY, sets={"step": value}, when=Attr("step").eq(value))


WRITES = [_put, _put_if_absent, _update, _update_member, _update_under_a_condition]


# --- REQ-DDB-01 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
def test_floats_go_through_every_write_and_come_back_exact(stack: Stack, write: Any) -> None:
    """REQ-DDB-01. Batch writes and transactions are not used, so there is no helper for them."""
    with stack.machine.inside("bury"):
        write(GIVEN)
        item = table.get(KEY)
    assert item is not None
    assert item["step"] == STORED
    assert item["step"]["ok"] is True


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), Decimal("NaN")])
@pytest.mark.parametrize("write", WRITES)
def test_a_number_that_is_not_finite_is_refused_before_any_call(
    stack: Stack, write: Any, number: Any
) -> None:
    """REQ-DDB-01: a typed error that names the path."""
    with stack.machine.inside("bury"), pytest.raises(NotFiniteError, match=r"scores\[1\]\.p is"):
        write({"scores": [0.25, {"p": number}]})
    assert "NaN" not in str(stack.machine.calls)
    assert "Infinity" not in str(stack.machine.calls)


def test_a_condition_value_that_is_not_finite_is_refused(stack: Stack) -> None:
    """REQ-DDB-01: condition values are converted as well."""
    with stack.machine.inside("bury"), pytest.raises(NotFiniteError):
        table.update(KEY, sets={"a": 1}, when=Attr("cost").lt(float("nan")))
    assert stack.machine.calls == []


# --- REQ-DDB-02 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [_put, _put_if_absent, _update])
def test_an_empty_set_is_stored_by_leaving_it_out(stack: Stack, write: Any) -> None:
    """REQ-DDB-02."""
    with stack.machine.inside("bury"):
        write({"depends_on": set(), "title": ""})
        assert table.get(KEY) == {"pk": KEY[0], "sk": KEY[1], "step": {"title": ""}}


def test_setting_an_empty_set_removes_the_attribute(stack: Stack) -> None:
    """REQ-DDB-02. There is no DELETE of single members in the design: who empties a set sets it empty."""
    with stack.machine.inside("bury"):
        table.put(KEY, {"tags": {"a", "b"}, "note": ""})
        assert table.update(KEY, sets={"tags": {"b"}})["tags"] == {"b"}
        after = table.update(KEY, sets={"tags": set(), "n": 1})
        assert after == {"pk": KEY[0], "sk": KEY[1], "note": "", "n": 1}
        table.update(KEY, adds={"tags": set(), "n": 1})


def test_conditions_treat_a_missing_attribute_as_the_empty_set(stack: Stack) -> None:
    """REQ-DDB-02: as the join's memory of who was counted, which is not there for the first."""
    with stack.machine.inside("bury"):
        not_counted = ~Attr("members").contains(1)
        table.update(KEY, adds={"members": {1}}, when=not_counted)
        with pytest.raises(ConditionFailedError):
            table.update(KEY, adds={"members": {1}}, when=not_counted)


def test_an_empty_set_that_cannot_be_left_out_is_refused_before_any_call(stack: Stack) -> None:
    """REQ-DDB-02."""
    with stack.machine.inside("bury"), pytest.raises(TypeError, match=r"rows\[0\] is an empty set"):
        table.put(KEY, {"rows": [set()]})
    assert stack.machine.calls == []


@pytest.mark.parametrize(("key", "name"), [(("", "b"), "pk"), (("a", ""), "sk")])
def test_an_empty_key_is_refused_by_name(stack: Stack, key: keys.Key, name: str) -> None:
    """REQ-DDB-02."""
    with stack.machine.inside("bury"):
        for use in (
            table.get,
            lambda k: table.put(k, {}),
            lambda k: table.update(k, sets={"a": 1}),
        ):
            with pytest.raises(ValueError, match=f"key attribute {name} is empty"):
                use(key)
    assert stack.machine.calls == []


# --- REQ-DDB-03 ---------------------------------------------------------------------------------------------

EXPRESSIONS = (
    "UpdateExpression",
    "ConditionExpression",
    "ProjectionExpression",
    "FilterExpression",
    "KeyConditionExpression",
)
LANGUAGE = {
    *("SET", "ADD", "REMOVE", "DELETE", "AND", "OR", "NOT", "IN", "BETWEEN"),
    *("attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains"),
    *("size", "if_not_exists", "list_append"),
}


def bare(expression: str) -> list[str]:
    """Identifiers that are neither aliases, placeholders nor of the language."""
    return [
        w for w in re.findall(r"[#:]?\w+", expression) if w[0] not in "#:" and w not in LANGUAGE
    ]


def test_bare_names_are_found() -> None:
    """The search below can find something."""
    assert bare("SET status = :s, #a.b = if_not_exists(#n, :z)") == ["status", "b"]


def test_no_expression_of_a_whole_run_holds_a_bare_name(stack: Stack) -> None:
    """REQ-DDB-03: done, failed, buried, swept, reopened, with a fan-out, effects and model calls."""
    stack.ask("r1", 3)
    stack.machine.run_until_quiet(sweep=True)
    job_id = stack.ask("r2", 0)

    def die(phase: Phase, call: Call) -> None:
        if call.function == "draft" and "CALL#" in str(call.parameters):
            raise ProcessGone

    remove = stack.machine.on_call(die)
    stack.machine.run_until_quiet()
    remove()
    assert stack.head(job_id)["status"] == "failed"
    with stack.machine.inside("bury"):
        (record,) = dead.newest()
        assert recovery.redrive(record["id"]) == "reopened"
    stack.machine.run_until_quiet(sweep=True)
    assert stack.head(job_id)["status"] == "done"
    found = [c.parameters[e] for c in stack.machine.calls for e in EXPRESSIONS if e in c.parameters]
    kinds = {e for c in stack.machine.calls for e in EXPRESSIONS if e in c.parameters}
    assert kinds == {"UpdateExpression", "ConditionExpression", "KeyConditionExpression"}
    assert {name: bare(name) for name in found if bare(name)} == {}


# --- REQ-DDB-04 ---------------------------------------------------------------------------------------------


def long(size: int) -> Any:
    answer = {"category": "card", "urgency": "low", "confidence": 0.9, "reason": "é" * (size // 2)}
    return says(json.dumps(answer))


def test_a_result_of_450_kib_is_stored_and_read_without_a_second_model_call(stack: Stack) -> None:
    """REQ-DDB-04."""
    stack.model.script(long(450 * 1024))
    job_id = stack.ask("r1", 0)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"
    assert stack.model.calls == 2  # classify and draft
    (item,) = stack.items("RESULT#classify#")
    assert "value" not in item
    assert set(item["ref"]) == {"key", "bytes", "sha256"}
    with stack.machine.inside("bury"):
        assert store.loaded_value(item)["reason"] == "é" * (225 * 1024)
    assert max(item_size(found) for found in stack.items()) < 300 * 1024


@pytest.mark.parametrize(("over", "where"), [(0, "value"), (1, "ref")])
def test_the_threshold_is_exact_and_counts_utf8_bytes(stack: Stack, over: int, where: str) -> None:
    """REQ-DDB-04."""
    text = "é" * ((store.VALUE_LIMIT - 2) // 2) + "x" * over  # two bytes are the quotes
    with stack.machine.inside("bury"):
        held = store.stored_value(text, "job")
        assert list(held) == [where]
        assert store.loaded_value(held) == text


def test_no_item_grows_with_the_turns_of_a_job(stack: Stack) -> None:
    """REQ-DDB-04: a history is not an attribute. Each attempt has an item of its own, and the head stays under
    1 KB however often it is written (a hundred waits here, for a hundred appended turns)."""
    job_id = stack.ask("r1", 3)
    stack.run_to("classify")
    with stack.machine.inside("classify"):
        for n in range(100):
            key = keys.head(job_id)
            table.update(key, sets={"wake": n, "not_before": n + 0.5}, adds={"attempt": 1})
    assert item_size(stack.head(job_id)) < 1024
    stack.edit(keys.head(job_id), wake=0)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"
    assert item_size(stack.head(job_id)) < 1024


def test_if_the_object_cannot_be_written_no_item_is(stack: Stack) -> None:
    """REQ-DDB-04: S3 first, then the pointer."""
    with stack.machine.inside("bury"):

        def busy(phase: Phase, call: Call) -> None:
            if call.service == "s3":
                raise aws_error("SlowDown", call.operation)

        remove = stack.machine.on_call(busy)
        with pytest.raises(TransientError):
            store.put_request("a" * 26, {"text": "x" * 40_000}, 1.0)
        remove()
    assert stack.items() == []


# --- REQ-DDB-05 ---------------------------------------------------------------------------------------------


def test_no_code_uses_a_transaction() -> None:
    """REQ-DDB-05, REQ-MOTO-01, REQ-MOTO-03 cannot arise: a state is one item, and so is a shard of a counter."""
    for path in SHIPPED:
        assert not re.search(
            r"transact_|Transact(Write|Get)|batch_write|BatchWrite", path.read_text()
        ), path


def test_twenty_parts_that_finish_at_once_are_counted_twenty_times(stack: Stack) -> None:
    """REQ-DDB-05: by calls of a whole run; no transaction among them."""
    stack.machine.shuffle = Random(7).shuffle
    job_id = stack.ask("r1", 20)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"
    shard = max(stack.items("JOIN"), key=lambda item: item["completed"])
    assert (shard["completed"], shard["members"]) == (20, set(range(20)))
    operations = {c.operation for c in stack.machine.calls if c.service == "dynamodb"}
    assert operations == {"GetItem", "PutItem", "UpdateItem", "Query"}


@pytest.mark.parametrize("code", ["TransactionConflictException", "ThrottlingException"])
def test_a_conflict_while_a_part_is_counted_costs_no_model_call(stack: Stack, code: str) -> None:
    """REQ-DDB-05: an update that met a transaction of somebody else's comes back, and the counter has moved by one."""
    job_id = stack.ask("r1", 3)
    met: list[Call] = []

    def conflict(phase: Phase, call: Call) -> None:
        at_counter = call.operation == "UpdateItem" and call.parameters["Key"]["sk"]["S"] == "JOIN"
        if phase == "before" and at_counter and len(met) < 2:
            met.append(call)
            raise aws_error(code, call.operation)

    stack.machine.on_call(conflict)
    stack.machine.run_until_quiet()
    assert len(met) == 2
    assert stack.head(job_id)["status"] == "done"
    assert stack.dead() == []
    assert stack.model.calls == 1 + 3 + 1
    assert {int(item["completed"]) for item in stack.items("JOIN")} == {1, 3}


def test_a_conflict_is_a_transient_error() -> None:
    """REQ-DDB-05: the record is failed, to come back, and not parked."""
    error = translated(aws_error("TransactionConflictException", "UpdateItem"))
    assert isinstance(error, TransientError)
