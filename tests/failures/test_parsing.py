"""REQ-PARSE-01 to 05: envelopes, numbers that are none, half characters, JSON within JSON."""

import importlib
import json
import math
import pkgutil
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import flows
import stafette
import tools
from local.model import says
from stafette.aws import artifacts, store
from stafette.core.body import open_body, read_json, whole_text
from stafette.core.errors import RefusedError
from stafette.core.job import Lease
from stafette.core.messages import Request, fingerprint, read_request, read_work
from tests.failures.conftest import Stack, event, failed
from tests.support import job_of

PLAIN = {
    "request_id": "r1",
    "tenant": "acme",
    "flow": "ticket",
    "input": {"text": "My card was stolen!"},
}
TEXT = json.dumps(PLAIN)
TOPIC = "arn:aws:sns:eu-west-1:000000000000:t"


def sns(message: str, **given: Any) -> str:
    envelope = {"Type": "Notification", "MessageId": "x", "TopicArn": TOPIC, "Message": message}
    return json.dumps({**envelope, "Timestamp": "2026-01-01T00:00:00.000Z", **given})


def from_event(detail: Any) -> str:
    envelope = {"version": "0", "id": "e1", "detail-type": "job.step", "source": "app"}
    return json.dumps({**envelope, "detail": detail})


def opened(body: str) -> Request:
    return read_request(open_body(body) or {})


def take(stack: Stack, body: str) -> str | None:
    """What intake makes of a body: the reason that it is kept under, None if it starts a job or means nothing."""
    assert failed(stack.machine.invoke("intake", event(body))) == []
    return stack.dead()[0]["reason"] if stack.dead() else None


# --- REQ-PARSE-01 and 02 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        TEXT,
        sns(TEXT),
        sns(TEXT, Signature="s", SigningCertURL="u", UnsubscribeURL="u", MessageAttributes={}),
        from_event(PLAIN),
        json.dumps(TEXT),
    ],
    ids=["raw", "sns", "sns signed", "eventbridge", "encoded twice"],
)
def test_all_wrappings_of_a_request_start_the_same_job(stack: Stack, body: str) -> None:
    """REQ-PARSE-01, REQ-PARSE-02, REQ-PARSE-05."""
    assert opened(body) == opened(TEXT)
    assert take(stack, body) is None
    assert stack.head(job_of("r1"))["fingerprint"] == fingerprint(
        {"flow": "ticket", "input": PLAIN["input"]}
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"Message": "{}"},
        {"Message": "{}", "Type": "Notification"},
        {"Message": "{}", "Type": "Notification", "TopicArn": "arn:aws:sqs:eu-west-1:0:t"},
        {"Message": "{}", "Type": "SubscriptionConfirmation", "TopicArn": TOPIC},
        {"Message": {}, "Type": "Notification", "TopicArn": TOPIC},
        {"detail": {}},
        {"detail": {}, "source": "app"},
    ],
)
def test_a_payload_with_fields_like_those_of_an_envelope_is_not_opened(extra: Any) -> None:
    """REQ-PARSE-01."""
    assert open_body(json.dumps({**PLAIN, **extra})) == {**PLAIN, **extra}


def test_an_envelope_is_opened_once() -> None:
    """REQ-PARSE-01: what is in it may look like one, and is the message."""
    assert open_body(sns(sns(TEXT))) == json.loads(sns(TEXT))
    assert open_body(from_event(json.loads(from_event(PLAIN)))) == json.loads(from_event(PLAIN))


def test_a_message_within_sns_that_is_no_json_is_kept(stack: Stack) -> None:
    """REQ-PARSE-01."""
    assert take(stack, sns("hello")) == "not_json"


def test_a_service_test_message_is_acknowledged_and_means_nothing(
    stack: Stack, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """REQ-PARSE-02: a log line, no state, no dead record and so no alarm."""
    body = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"})
    assert take(stack, body) is None
    assert stack.items() == []
    assert [record.message for record in caplog.records] == ["a service's test message"]
    assert "DeadRecords" not in capsys.readouterr().out


def test_an_unknown_object_is_kept(stack: Stack) -> None:
    """REQ-PARSE-02."""
    assert take(stack, '{"unknown": true}') == "unknown_envelope"


# Names that mean something to a parser, and words that it looks for under them.
NAMES = [
    *("v", "kind", "input", "flow", "tenant", "request_id", "job_id", "key", "sha256", "bytes"),
    *("Type", "TopicArn", "Message", "detail", "detail-type", "source", "Event", "Service"),
]
names = st.sampled_from(NAMES)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(names | st.text(), inner),
    max_leaves=8,
)
kinds = st.sampled_from(["handoff", "range", "part", "notice", "ref", "request"])
nearly = st.dictionaries(names, json_values | kinds | st.just(TOPIC) | st.just(TEXT))


@given(json_values | nearly)
def test_nothing_but_a_refusal_comes_of_any_json_value(value: Any) -> None:
    """REQ-PARSE-02, as a property: no KeyError, TypeError or the like, whatever the body is."""
    for read in (read_request, read_work):
        try:
            found = open_body(json.dumps(value))
            if found is not None:
                read(found)
        except RefusedError:
            continue


@pytest.mark.parametrize("body", ["null", "[]", "0", '""', "true", "", " ", '"x"', "{", "[" * 300])
def test_a_body_that_is_no_object_is_kept(stack: Stack, body: str) -> None:
    """REQ-PARSE-02."""
    assert take(stack, body) in {"not_json", "not_an_object", "too_deep"}


@pytest.mark.parametrize("depth", [300, 100_000])
def test_a_body_of_deep_nesting_is_kept(stack: Stack, depth: int) -> None:
    """REQ-PARSE-02."""
    assert take(stack, '{"input": ' + "[" * depth + "]" * depth + "}") == "too_deep"


# --- REQ-PARSE-03 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_refused_with_its_place(stack: Stack, number: str) -> None:
    """REQ-PARSE-03: from a body; before any model call."""
    body = TEXT.replace('"input": {', '"input": {"score": ' + number + ", ")
    assert take(stack, body) == "not_finite"
    assert "$.input.score is not a finite number" in stack.dead()[0]["detail"]
    assert stack.model.calls == 0


def _models() -> Iterator[type[BaseModel]]:
    for package in (stafette, flows, tools):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for model in vars(module).values():
                if not (isinstance(model, type) and issubclass(model, BaseModel)):
                    continue
                if model.__module__ == module.__name__ and not issubclass(model, Lease):
                    yield model


def _holds_float(kind: Any) -> bool:
    if kind is float:
        return True
    if get_origin(kind) in (Annotated, Union, UnionType, list, dict, tuple):
        return any(_holds_float(inner) for inner in get_args(kind))
    return False


FLOATS = [
    (m, name) for m in _models() for name, f in m.model_fields.items() if _holds_float(f.annotation)
]


@pytest.mark.parametrize(
    ("model", "name"), FLOATS, ids=lambda each: getattr(each, "__name__", each)
)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, "NaN", "Infinity"])
def test_every_float_field_refuses_what_is_not_finite(
    model: type[BaseModel], name: str, number: Any
) -> None:
    """REQ-PARSE-03: walks all models. Those of the table (heads, leases) read what DynamoDB holds, which has no
    such numbers; what writes them refuses these (REQ-DDB-01)."""
    field: FieldInfo = model.model_fields[name]
    annotated = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    with pytest.raises(ValidationError):
        TypeAdapter(annotated, config=model.model_config).validate_python(number)


TRAVELS = [m for m in _models() if m.__module__ in ("flows.ticket", "stafette.core.messages")]


@pytest.mark.parametrize("model", TRAVELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_float_without_bounds_would_be_refused_by_whatever_travels(
    model: type[BaseModel], number: float
) -> None:
    """REQ-PARSE-03: by its configuration, for the field that somebody adds."""
    with pytest.raises(ValidationError):
        TypeAdapter(float, config=model.model_config).validate_python(number)


def test_the_walk_over_models_finds_some() -> None:
    """REQ-PARSE-03."""
    assert ("Classified", "confidence") in [(model.__name__, name) for model, name in FLOATS]


@pytest.mark.parametrize("number", ["NaN", '"NaN"', "Infinity", "1e999"])
def test_such_a_number_in_an_answer_fails_the_call_and_not_the_write(
    stack: Stack, number: str
) -> None:
    """REQ-PARSE-03: a model's answer. There is no tool loop, and so no tool call to answer with an error."""
    answer = '{"category": "card", "urgency": "low", "reason": "r", "confidence": %s}'
    stack.model.script(says(answer % number))
    job_id = stack.run("r1", 0)
    (first, *_) = stack.items("CALL#classify#")
    assert first["outcome"] == "invalid_answer"
    assert stack.head(job_id)["status"] == "done"


def test_nothing_sent_or_stored_holds_such_a_word(stack: Stack) -> None:
    """REQ-PARSE-03: serialised output."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.stored_value({"score": math.nan}, "job")
    with pytest.raises(ValidationError):
        Request(input={}, v=math.nan)  # type: ignore[arg-type]
    stack.run("r1", 2)
    assert not any(word in str(stack.items()) for word in ("NaN", "Infinity"))


# --- REQ-PARSE-04 -------------------------------------------------------------------------------------------

HALVES = [
    ("ok \ud83c", "ok \ufffd"),
    ("\udf78 ok", "\ufffd ok"),
    ("\ud83c\udf78", "🍸"),
    ("😀 漢字 é", "😀 漢字 é"),
    ("\udf78\ud83c", "\ufffd\ufffd"),
]


@pytest.mark.parametrize(("text", "whole"), HALVES)
def test_half_a_character_becomes_a_replacement_and_pairs_are_joined(text: str, whole: str) -> None:
    """REQ-PARSE-04: as whole text, and as pieces that are put together before they are cleaned."""
    assert whole_text(text) == whole
    assert whole_text("".join(list(text))) == whole


@pytest.mark.parametrize(("text", "whole"), HALVES)
def test_an_answer_with_half_a_character_is_stored_sent_hashed_and_logged(
    stack: Stack, text: str, whole: str
) -> None:
    """REQ-PARSE-04: from the model to the end of the job. (A tool result: there is no tool loop.)"""
    answer = {"category": "card", "urgency": "low", "confidence": 0.9, "reason": text}
    stack.model.script(says(json.dumps(answer)))
    job_id = stack.run("r1", 0)
    head = stack.head(job_id)
    assert (head["status"], stack.model.calls) == ("done", 2)
    (item,) = stack.items("RESULT#classify#")
    assert json.loads(item["value"])["reason"] == whole
    assert fingerprint(whole)


@pytest.mark.parametrize(("text", "whole"), HALVES)
def test_what_a_stage_returns_is_cleaned_where_it_is_stored(
    stack: Stack, text: str, whole: str
) -> None:
    """REQ-PARSE-04: a stage of somebody's own need not know of it; small and large values."""
    with stack.machine.inside("draft"):
        for times in (1, store.VALUE_LIMIT):
            held = store.stored_value({text: [text * times]}, "job")
            assert store.loaded_value(held) == {whole: [whole_text(text * times)]}
        assert artifacts.get(artifacts.put(whole, "job")) == whole


@pytest.mark.parametrize("escaped", ['"\\ud83c"', '"x\\udf78"'])
def test_a_body_with_half_a_character_is_refused(stack: Stack, escaped: str) -> None:
    """REQ-PARSE-04. DESIGN holds: a stranger's body with a lone surrogate is refused at once, not repaired."""
    assert take(stack, TEXT.replace('"My card was stolen!"', escaped)) == "lone_surrogate"
    assert "$.input.text" in stack.dead()[0]["detail"]


def test_a_body_with_a_pair_of_escapes_is_one_character() -> None:
    """REQ-PARSE-04."""
    assert read_json('"\\ud83c\\udf78"') == "🍸"


# --- REQ-PARSE-05 -------------------------------------------------------------------------------------------


def test_a_body_is_decoded_twice_and_not_a_third_time(stack: Stack) -> None:
    """REQ-PARSE-05."""
    assert opened(json.dumps(TEXT)) == opened(TEXT)
    assert take(stack, json.dumps(json.dumps(TEXT))) == "not_an_object"


@pytest.mark.parametrize("text", ["[1,2]", '{"a": 1}', "7", "null"])
def test_a_text_that_looks_like_json_stays_text(stack: Stack, text: str) -> None:
    """REQ-PARSE-05: fields of type string are never decoded."""
    stack.ask("r1", 0, text=text)
    stack.machine.run_until_quiet()
    (item,) = stack.items("RESULT#route#")
    assert json.loads(item["value"])["text"] == text


def test_an_array_as_text_is_refused_where_an_array_belongs(stack: Stack) -> None:
    """REQ-PARSE-05: strict validation at the door."""
    body = json.dumps({**PLAIN, "input": {"text": "x", "records": '[{"id": "a"}]'}})
    assert take(stack, body) == "bad_shape"
    assert "records" in stack.dead()[0]["detail"]


def test_no_request_offers_a_tool(stack: Stack) -> None:
    """REQ-PARSE-05: corrections of tool inputs cannot arise while no agent has tools."""
    stack.run("r1", 2)
    assert stack.model.requests
    assert not any("tools" in request for request in stack.model.requests)
