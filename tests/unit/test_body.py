"""What a body may be, and out of which envelopes it comes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafette.core.body import MOST_NESTING, open_body, read_json, whole_text
from stafette.core.errors import RefusedError

SNS = {"Type": "Notification", "TopicArn": "arn:aws:sns:us-east-1:1:t"}
EVENT = {"detail-type": "asked", "source": "shop"}
REQUEST = {"input": {"text": "a"}}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=10,
)


@given(json_values)
def test_any_sound_json_is_read_as_it_is(value: Any) -> None:
    assert read_json(json.dumps(value)) == value


REASONS = {"not_json", "too_deep", "not_finite", "lone_surrogate", "not_an_object"}


def reason_of(text: str) -> str | None:
    try:
        open_body(text)
    except RefusedError as refused:
        return refused.reason
    return None


@given(st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    assert reason_of(text) in {None, *REASONS}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(REQUEST),
        json.dumps(json.dumps(REQUEST)),
        json.dumps({**SNS, "Message": json.dumps(REQUEST)}),
        json.dumps(json.dumps({**SNS, "Message": json.dumps(REQUEST)})),
        json.dumps({**EVENT, "detail": REQUEST}),
    ],
)
def test_an_envelope_is_opened(body: str) -> None:
    assert open_body(body) == REQUEST


def test_an_envelope_is_opened_once() -> None:
    inner = {**EVENT, "detail": REQUEST}
    assert open_body(json.dumps({**SNS, "Message": json.dumps(inner)})) == inner


@pytest.mark.parametrize(
    "detail", [{**SNS, "TopicArn": "mine"}, {**SNS, "Message": 17}, {**SNS}, {"detail": REQUEST}]
)
def test_what_only_looks_like_an_envelope_is_left_as_it_is(detail: dict[str, Any]) -> None:
    assert open_body(json.dumps(detail)) == detail


def test_a_test_message_of_a_service_is_about_nothing() -> None:
    assert open_body('{"Service": "Amazon S3", "Event": "s3:TestEvent"}') is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ("9" * 5000, "not_json"),
        ("NaN", "not_finite"),
        ('{"a": [1e999]}', "not_finite"),
        ('{"a": "\\ud800"}', "lone_surrogate"),
        ('{"\\udfff": 1}', "lone_surrogate"),
        ("[" * 300 + "]" * 300, "too_deep"),
        ("[" * 100_000, "too_deep"),
    ],
)
def test_what_nothing_downstream_could_carry_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_json(text)
    assert refused.value.reason == reason


def test_nesting_is_taken_up_to_the_limit() -> None:
    at_limit = "[" * (MOST_NESTING + 1) + "]" * (MOST_NESTING + 1)
    read_json(at_limit)
    with pytest.raises(RefusedError):
        read_json(f"[{at_limit}]")


@given(st.text())
def test_text_made_whole_can_be_encoded(text: str) -> None:
    whole = whole_text(text)
    whole.encode()
    assert whole == whole_text(whole)


def test_pairs_of_surrogates_are_joined_and_lone_ones_replaced() -> None:
    assert whole_text("a\ud83d\ude00b\ud800") == "a😀b\ufffd"
