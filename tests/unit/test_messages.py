"""Messages: their shapes, their versions, and the ids that are derived from what they ask for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafette.core.errors import RefusedError
from stafette.core.messages import (
    VERSION,
    Handoff,
    Notice,
    PartWork,
    RangeWork,
    Ref,
    ToJob,
    UnknownVersionError,
    fingerprint,
    job_id,
    read_ref,
    read_request,
    read_work,
    trace_id,
)

ABOUT = {"job_id": "0" * 26, "tenant": "acme", "to": "draft"}
FAN = {"split": "enrich", "stage": "enriching", "join_to": "enrich", "total": 3}
WORK = [
    Handoff(**ABOUT, handoff="enrich:join", stage="enriching", wake=2, inputs={"Ticket": {"a": 1}}),
    RangeWork(**ABOUT, **FAN, range_no=0, parts=[1, "é", None]),
    PartWork(**ABOUT, **FAN, index=2, input={"record": {"id": "\u2028"}}),
    Notice(**ABOUT, event="ended", n=0, flow="", stage="acted", status="done", reason=None),
]


@pytest.mark.parametrize("message", WORK, ids=lambda message: message.kind)
def test_a_message_is_read_as_it_was_written_and_travels_in_ascii(message: Any) -> None:
    body = message.to_body()
    assert body.isascii()
    assert read_work(json.loads(body)) == message
    assert json.loads(body)["v"] == VERSION


@pytest.mark.parametrize("message", WORK, ids=lambda message: message.kind)
def test_unknown_fields_are_kept_and_a_newer_version_is_never_misread(message: ToJob) -> None:
    value = json.loads(message.to_body())
    assert json.loads(read_work({**value, "tomorrow": 1}).to_body())["tomorrow"] == 1
    with pytest.raises(UnknownVersionError):
        read_work({**value, "v": VERSION + 1})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "nonsense"}, "unknown_envelope"),
        ({"kind": None}, "unknown_envelope"),
        ({"v": "1"}, "bad_shape"),
        ({"v": 0}, "bad_shape"),
        ({"v": True}, "bad_shape"),
        ({"job_id": "short"}, "bad_shape"),
        ({"job_id": "0" * 26 + "\n"}, "bad_shape"),
        ({"tenant": ""}, "bad_shape"),
        ({"handoff": "A B"}, "bad_shape"),
        ({"wake": 1.5}, "bad_shape"),
        ({"wake": "1"}, "bad_shape"),
        ({"inputs": []}, "bad_shape"),
    ],
)
def test_a_wrong_shape_is_refused_without_repeating_what_was_sent(
    change: dict[str, Any], reason: str
) -> None:
    value = json.loads(WORK[0].to_body()) | change
    with pytest.raises(RefusedError) as refused:
        read_work(value)
    assert refused.value.reason == reason
    assert "short" not in str(refused.value)


def test_a_request_needs_an_input() -> None:
    assert read_request({"input": {}}).tenant == "default"
    with pytest.raises(RefusedError) as refused:
        read_request({"text": "hello"})
    assert refused.value.reason == "unknown_envelope"
    with pytest.raises(UnknownVersionError):
        read_request({"v": VERSION + 1, "anything": 1})


def test_a_reference_is_known_by_its_kind() -> None:
    ref = Ref(key="artifacts/inbox/x", bytes=3, sha256="0")
    assert read_ref(json.loads(ref.to_body())) == ref
    assert read_ref({"input": {}}) is None
    with pytest.raises(RefusedError):
        read_ref({"kind": "ref", "key": 1})


texts = st.text(max_size=30)


@given(texts, texts, texts)
def test_asked_twice_is_one_job_and_nothing_else_is(
    tenant: str, request_id: str, message_id: str
) -> None:
    known = job_id(tenant, request_id, message_id)
    assert known == job_id(tenant, request_id, message_id + "x")
    others = {
        job_id(tenant + "x", request_id, message_id),
        job_id(tenant, request_id + "x", message_id),
        job_id(tenant, None, request_id),
        job_id(request_id + "x", tenant, message_id),
    }
    assert known not in others
    Handoff(**(ABOUT | {"job_id": known}), handoff="route", stage="asked")


def test_ids_are_stable_for_ever() -> None:
    assert job_id("acme", "ticket-1001", "x") == "bme48qj0x5mh5t5af0680zszx4"
    assert trace_id("0" * 26) == "ea17bd3f32e281a243bbe37440c798a9"


@given(st.dictionaries(texts, st.integers() | texts))
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(value: dict[str, Any]) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(value.items())))
    assert fingerprint(value) != fingerprint({**value, "another key": 1})


@pytest.mark.parametrize(("index", "expected"), [(0, "enrich:00000"), (9999, "enrich:09999")])
def test_the_id_of_a_part_says_which_it_is(index: int, expected: str) -> None:
    assert PartWork(**ABOUT, **FAN, index=index, input=None).handoff == expected
