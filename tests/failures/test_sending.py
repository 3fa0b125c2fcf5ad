"""REQ-SQS-04 to 06: sends accepted in part, sizes, and characters that SQS will not carry."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.calls import Call, Phase
from local.model import says
from stafette.aws import artifacts, queues
from stafette.core.body import open_body
from stafette.core.follow_ups import Send
from stafette.core.messages import Handoff, PartWork, Request, read_work
from stafette.relay import recovery
from tests.failures.conftest import Stack, aws_error

JOB = "a" * 26
# What a message may hold, by the service's documentation of SendMessage.
CARRIED = re.compile(r"[\x09\x0a\x0d\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


def handoff(text: Any) -> Handoff:
    return Handoff(
        job_id=JOB, tenant="acme", to="draft", handoff="draft", stage="enriched", inputs={"T": text}
    )


def part(index: int, size: int = 10) -> Send:
    work = PartWork(
        job_id=JOB,
        tenant="acme",
        to="enrich_record",
        split="enrich",
        stage="enriching",
        join_to="enrich",
        index=index,
        total=100,
        input="x" * size,
    )
    return Send(work)


class Refusing:
    """Answers SendMessageBatch as the service does when it takes a batch in part: the rest never was sent."""

    def __init__(self, stack: Stack, *faults: dict[str, Any], times: int = 1) -> None:
        self.accepted: list[int] = []
        self.batches: list[list[int]] = []
        self._faults, self._times, self._kept = faults, times, {}
        self._nowhere = stack.machine.queue_url("TerminalQueue")
        stack.machine.on_call(self)

    def __call__(self, phase: Phase, call: Call) -> None:
        if call.operation != "SendMessageBatch":
            return
        if phase == "before":
            index = {e["Id"]: json.loads(e["MessageBody"])["index"] for e in self.entries(call)}
            self.batches.append(list(index.values()))
            self._kept[call.number] = []
            if self._times > 0:
                wrong = {fault["index"]: fault for fault in self._faults}
                self._kept[call.number] = [
                    {"Id": name, **wrong[i]} for name, i in index.items() if i in wrong
                ]
            self._times -= bool(self._kept[call.number])
            refused = {fault["Id"] for fault in self._kept[call.number]}
            taken = [e for e in self.entries(call) if e["Id"] not in refused]
            # A call of nothing is an error of its own: what is refused whole goes where nobody reads.
            call.parameters |= {"Entries": taken} if taken else {"QueueUrl": self._nowhere}
            self.accepted += [i for name, i in index.items() if name not in refused]
        elif call.response is not None and self._kept[call.number]:
            call.response["Failed"] = self._kept[call.number]

    @staticmethod
    def entries(call: Call) -> list[dict[str, Any]]:
        return call.parameters["Entries"]  # type: ignore[no-any-return]


def busy(index: int) -> dict[str, Any]:
    return {"index": index, "Code": "InternalError", "SenderFault": False}


def ours(index: int) -> dict[str, Any]:
    return {"index": index, "Code": "InvalidParameterValue", "SenderFault": True}


# --- REQ-SQS-04 ---------------------------------------------------------------------------------------------


def test_of_a_batch_accepted_in_part_the_rest_is_sent_again_or_counted_as_failed(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """REQ-SQS-04. DESIGN's words: the part fails with reason `not_sent`, and its detail names the code."""
    job_id = stack.ask("r1", 10)
    refusing = Refusing(stack, busy(3), ours(7))
    began = stack.machine.clock.now()
    stack.machine.run_until_quiet()
    assert refusing.batches == [list(range(10)), [3]]  # only child 3, and only once more
    assert sorted(refusing.accepted) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    parts = {int(item["index"]): item for item in stack.items("PART#")}
    assert (parts[7]["reason"], parts[7]["detail"]) == ("not_sent", "InvalidParameterValue")
    assert all("value" in item for index, item in parts.items() if index != 7)
    head = stack.head(job_id)
    assert head["status"] == "done"
    shard, top = sorted(stack.items("JOIN"), key=lambda item: -item["completed"])
    assert (shard["completed"], shard["failed"]) == (10, 1)
    assert (top["completed"], top["failed"]) == (1, 1)
    assert stack.machine.clock.now() > began  # it waited before it tried again
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert [m["PartsStarted"] for m in metrics if "PartsStarted" in m] == [[9.0]]


def test_what_the_second_of_three_chunks_lost_leaves_the_first_sent_once(stack: Stack) -> None:
    """REQ-SQS-04."""
    stack.ask("r1", 30)
    refusing = Refusing(stack, busy(12), busy(15), times=2)
    stack.machine.run_until_quiet()
    assert sorted(refusing.accepted) == list(range(30))
    first, second, third = range(10), range(10, 20), range(20, 30)
    assert refusing.batches == [[*first], [*second], [12, 15], [12, 15], [*third]]
    assert stack.model.calls == 1 + 30 + 1


def test_a_second_chunk_that_is_turned_away_whole_has_no_part_worked_twice(stack: Stack) -> None:
    """REQ-SQS-04. DESIGN holds: the range comes back and is sent whole, and each part is still worked once."""
    job_id = stack.ask("r1", 30)
    turned_away: list[Call] = []

    def busy_once(phase: Phase, call: Call) -> None:
        if phase == "after" or call.operation != "SendMessageBatch" or turned_away:
            return
        if json.loads(call.parameters["Entries"][0]["MessageBody"])["index"] == 10:
            turned_away.append(call)
            raise aws_error("ThrottlingException", call.operation)

    stack.machine.on_call(busy_once)
    stack.machine.run_until_quiet()
    assert turned_away
    assert stack.head(job_id)["status"] == "done"
    assert stack.model.calls == 1 + 30 + 1


def test_a_message_that_is_never_accepted_comes_back_as_a_failed_record(stack: Stack) -> None:
    """REQ-SQS-04: nothing is acknowledged while a child is not out."""
    job_id = stack.ask("r1", 3)
    stack.run_to("enrich_record")
    refusing = Refusing(stack, busy(1), times=4)
    outcome = stack.machine.step()
    assert outcome is not None
    assert len(outcome.response["batchItemFailures"]) == 1
    assert refusing.batches == [[0, 1, 2], [1], [1], [1]]
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"


@pytest.mark.parametrize("to", ["classify", "draft", "act"])
def test_a_job_that_waits_for_a_message_which_no_queue_takes_fails_with_the_reason(
    stack: Stack, to: str
) -> None:
    """REQ-SQS-04, of a single message: it would be tried for a day, and then nobody would know why."""
    refused: list[Call] = []

    def refuse(phase: Phase, call: Call) -> None:
        mine = call.parameters.get("QueueUrl") == stack.machine.queue_url(to)
        if phase == "before" and call.operation == "SendMessage" and mine:
            refused.append(call)
            raise aws_error("InvalidMessageContents", call.operation)

    remove = stack.machine.on_call(refuse)
    job_id = stack.ask("r1", 2)
    stack.machine.run_until_quiet()
    remove()
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == ("failed", "too_large")
    assert "InvalidMessageContents" in head["detail"]
    assert (len(refused), "due" in head) == (1, False)
    assert (stack.notices(job_id), stack.dead(job_id)) == (["ended"], [])
    with stack.machine.inside("bury"):
        assert recovery.reopen(job_id) is not None
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"


def test_a_notice_that_no_queue_takes_is_kept_and_its_job_stays_done(stack: Stack) -> None:
    """REQ-SQS-04."""

    def refuse(phase: Phase, call: Call) -> None:
        mine = call.parameters.get("QueueUrl") == stack.machine.queue_url("notify")
        if phase == "before" and call.operation == "SendMessage" and mine:
            raise aws_error("InvalidMessageContents", call.operation)

    remove = stack.machine.on_call(refuse)
    job_id = stack.ask("r1", 0)
    stack.machine.run_until_quiet()
    remove()
    assert stack.head(job_id)["status"] == "done"
    [kept] = stack.dead()
    assert (kept["function"], kept["reason"]) == ("act", "too_large")
    with stack.machine.inside("bury"):
        assert recovery.redrive(kept["id"]) == "sent"
    stack.machine.run_until_quiet()
    assert stack.notices(job_id) == ["ended"]


# --- REQ-SQS-05 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "attributes", "size"),
    [
        ("é" * 524_288, None, queues.MESSAGE_LIMIT),
        ("é" * 524_288, {"a": {"DataType": "String", "StringValue": "b"}}, 1_048_576 + 8),
        ("a" * 10, {"né": {"DataType": "String", "StringValue": "ü"}}, 10 + 3 + 6 + 2),
    ],
)
def test_size_is_utf8_bytes_of_body_and_attributes(body: str, attributes: Any, size: int) -> None:
    """REQ-SQS-05."""
    assert queues.message_size(body, attributes) == size


@pytest.mark.parametrize(("over", "kind"), [(0, "handoff"), (1, "ref")])
def test_a_body_over_the_limit_travels_as_a_reference_with_a_checksum(
    stack: Stack, over: int, kind: str
) -> None:
    """REQ-SQS-05: at the limit and one byte over it."""
    room = queues.BODY_LIMIT - len(handoff("").to_body()) + over
    text = "é" * (room // 6) + "x" * (room % 6)  # an é is six bytes as it travels
    with stack.machine.inside("enrich"):
        body = queues.to_body(handoff(text), JOB)
        assert json.loads(body)["kind"] == kind
        assert queues.message_size(body) <= queues.BODY_LIMIT
        assert queues.from_body(body) == handoff(text)
        if kind == "ref":
            key = json.loads(body)["key"]
            stack.machine.client("s3").put_object(
                Bucket=stack.machine.bucket, Key=key, Body=b"other"
            )
            with pytest.raises(artifacts.RefusedError) as refused:
                queues.from_body(body)
            assert refused.value.reason == "artifact_changed"


def test_limits_leave_headroom() -> None:
    """REQ-SQS-05: named settings, the first two under the service's."""
    assert queues.BODY_LIMIT < queues.BATCH_LIMIT < queues.MESSAGE_LIMIT == 1_048_576


def test_a_batch_call_holds_ten_messages_and_a_limited_sum(stack: Stack) -> None:
    """REQ-SQS-05: ten entries of 110 KiB each fit, their sum does not."""
    with stack.machine.inside("enrich_record"):
        assert queues.send_all([part(n, 110 * 1024) for n in range(10)]) == []
        assert queues.send_all([part(n) for n in range(25)]) == []
    sent = [call.parameters["Entries"] for call in stack.calls("SendMessageBatch")]
    assert [len(entries) for entries in sent] == [8, 2, 10, 10, 5]
    for entries in sent:
        sizes = [queues.message_size(entry["MessageBody"]) for entry in entries]
        assert sum(sizes) <= queues.BATCH_LIMIT


@pytest.mark.parametrize("over", [0, 1])
def test_the_sum_of_a_batch_call_is_exact_to_the_byte(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    """REQ-SQS-05."""
    sends = [part(n) for n in range(3)]
    total = sum(queues.message_size(send.message.to_body()) for send in sends)
    monkeypatch.setattr(queues, "BATCH_LIMIT", total - over)
    with stack.machine.inside("enrich_record"):
        queues.send_all(sends)
    assert len(stack.calls("SendMessageBatch")) == 1 + over


def test_a_large_request_runs_through_and_nothing_sent_is_too_large(stack: Stack) -> None:
    """REQ-SQS-05, over a whole run."""
    job_id = stack.ask("r1", 3, text="My card was stolen! " + "é" * 90_000)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"
    bodies = [call.parameters["MessageBody"] for call in stack.calls("SendMessage")]
    assert any(json.loads(body)["kind"] == "ref" for body in bodies)
    assert max(map(queues.message_size, bodies)) <= queues.BODY_LIMIT


def test_a_body_that_filled_a_message_can_be_redriven(stack: Stack) -> None:
    """REQ-SQS-05: with the attribute that names its origin it no longer fits into a message."""
    body = json.dumps({"request_id": "r1", "tenant": "acme", "input": {"text": "Lost my card!"}})
    body += " " * (queues.MESSAGE_LIMIT - len(body))
    with stack.machine.inside("bury"):
        queues.resend_body("intake", body, "acme", "0" * 36)
    (call,) = stack.calls("SendMessage")
    given = call.parameters
    assert queues.message_size(given["MessageBody"], given["MessageAttributes"]) < 1_000
    stack.machine.run_until_quiet()
    assert stack.items("JOB")[0]["status"] == "done"


# --- REQ-SQS-06 ---------------------------------------------------------------------------------------------


# Not `st.text`, which never draws half a character.
code_points = st.integers(0, 0x10FFFF) | st.integers(0xD800, 0xDFFF)


@given(st.lists(code_points.map(chr), max_size=50).map("".join))
def test_whatever_text_a_message_holds_its_body_is_carried_and_comes_back(text: str) -> None:
    """REQ-SQS-06, as a property over all code points, lone surrogates included (these come back as U+FFFD)."""
    body = handoff({text: [text]}).to_body()
    assert body.isascii()
    assert CARRIED.fullmatch(body)
    work = read_work(open_body(body) or {})
    assert isinstance(work, Handoff)
    whole = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in _paired(text))
    assert work.inputs == {"T": {whole: [whole]}}


def _paired(text: str) -> str:
    return re.sub(
        r"[\ud800-\udbff][\udc00-\udfff]",
        lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"),
        text,
    )


def test_every_code_point_is_carried() -> None:
    """REQ-SQS-06: all 1,114,112 of them, a thousand at a time."""
    for start in range(0, 0x110000, 0x1000):
        text = "".join(map(chr, range(start, start + 0x1000)))
        assert CARRIED.fullmatch(handoff(text).to_body())


@pytest.mark.parametrize("text", ["ok\uffff", "bell\u0007", "a\u0000b", "\ufffe", "😀 漢字"])
def test_an_answer_with_such_characters_reaches_the_next_stage_as_it_was(
    stack: Stack, text: str
) -> None:
    """REQ-SQS-06: the emulator takes anything, so what was sent is looked at. U+FFFF comes back included."""
    answer = {"category": "card", "urgency": "low", "confidence": 0.9, "reason": text}
    stack.model.script(says(json.dumps(answer)))
    job_id = stack.ask("r1", 0)
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"
    sent = [call.parameters for call in stack.calls("SendMessage")]
    assert all(CARRIED.fullmatch(given["MessageBody"]) for given in sent)
    carried = [json.loads(given["MessageBody"]).get("inputs") or {} for given in sent]
    assert {i["Classified"]["reason"] for i in carried if "Classified" in i} == {text}


@pytest.mark.parametrize("field", ["tenant", "flow"])
@pytest.mark.parametrize("text", ["bell\u0007", "ok\uffff", "", "a b", "x" * 65, "é"])
def test_what_becomes_an_attribute_or_a_group_is_of_a_fixed_pattern(field: str, text: str) -> None:
    """REQ-SQS-06: attributes hold ids and enumerations only."""
    with pytest.raises(ValueError, match=field):
        Request.model_validate({"input": {}, field: text})


def test_attributes_of_a_whole_run_are_ids_and_enumerations(stack: Stack) -> None:
    """REQ-SQS-06."""
    stack.ask("r1", 1)
    stack.machine.run_until_quiet()
    assert stack.machine.published
    for told in stack.machine.published:
        assert all(re.fullmatch(r"[A-Za-z0-9_.:@-]+", v) for v in told["attributes"].values())
