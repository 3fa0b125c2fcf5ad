"""The local machine plays queues, mappings and functions as AWS does. On a small template of its own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from local.calls import Call
from local.clock import RealClock, VirtualClock
from local.machine import TEMPLATE, Machine, NotQuietError

SMALL = """
Transform: AWS::Serverless-2016-10-31
Globals: {Function: {Runtime: python3.13, Handler: app.handler, Timeout: 10}}
Resources:
  WorkQueue:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 60
      RedrivePolicy: {deadLetterTargetArn: !GetAtt DeadQueue.Arn, maxReceiveCount: 2}
  DeadQueue:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 60
      RedrivePolicy: {deadLetterTargetArn: !GetAtt LastQueue.Arn, maxReceiveCount: 2}
  LastQueue: {Type: AWS::SQS::Queue}
  Ended: {Type: AWS::SNS::Topic}
  Table:
    Type: AWS::DynamoDB::Table
    Properties:
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{AttributeName: pk, AttributeType: S}]
      KeySchema: [{AttributeName: pk, KeyType: HASH}]
  Work:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: work/
      Environment: {Variables: {TABLE: !Ref Table, TOPIC: !Ref Ended, ONLY_WORK: "1"}}
      Events:
        M:
          Type: SQS
          Properties:
            Queue: !GetAtt WorkQueue.Arn
            BatchSize: 5
            FunctionResponseTypes: [ReportBatchItemFailures]
            ScalingConfig: {MaximumConcurrency: 2}
  Bury:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: bury/
      Events: {M: {Type: SQS, Properties: {Queue: !GetAtt DeadQueue.Arn}}}
  Sweep:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: sweep/
      Events: {M: {Type: ScheduleV2, Properties: {ScheduleExpression: rate(1 minute)}}}
"""
# Each function only hands over to the test: `handle` is set on the class that it imports.
APP = """
from MODULE import Handlers
def handler(event, context):
    return Handlers.of["NAME"](event, context)
"""
NOTHING_FAILED: dict[str, Any] = {"batchItemFailures": []}
Event = dict[str, Any]


class Handlers:
    of: dict[str, Callable[[Any, Any], Any]]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    for name in ("work", "bury", "sweep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(
            APP.replace("NAME", name).replace("MODULE", __name__)
        )
    (tmp_path / "template.yaml").write_text(SMALL)
    Handlers.of = dict.fromkeys(("work", "bury", "sweep"), lambda event, context: None)
    return tmp_path / "template.yaml"


@pytest.fixture
def machine(template: Path) -> Iterator[Machine]:
    with Machine(template, environment={"EXTRA": "x"}, clock=VirtualClock()) as machine:
        yield machine


def send(machine: Machine, *bodies: str, **more: Any) -> None:
    for body in bodies:
        machine.client("sqs").send_message(
            QueueUrl=machine.queue_url("work"), MessageBody=body, **more
        )


def deliveries(name: str, answer: Callable[[Event], Any] = lambda event: None) -> list[list[str]]:
    """Makes the function `name` give `answer`; returns the list that its batches of bodies come into."""
    seen: list[list[str]] = []

    def handle(event: Event, context: Any) -> Any:
        seen.append([record["body"] for record in event["Records"]])
        return answer(event)

    Handlers.of[name] = handle
    return seen


def test_project_template_loads_whole() -> None:
    with Machine(TEMPLATE) as machine:
        assert machine.queue_url("enrich_record").endswith("EnrichRecordQueue")
        assert len(machine.mappings) == 10
        tables = machine.client("dynamodb").list_tables()["TableNames"]
        assert tables == [machine.outputs["TableName"]]
        assert machine.backlog() == {}


def test_record_has_the_shape_that_lambda_gives(machine: Machine) -> None:
    events: list[Event] = []
    Handlers.of["work"] = lambda event, context: events.append(event)
    text = {"StringValue": "yes", "DataType": "String"}
    binary = {"BinaryValue": b"\x00\x01", "DataType": "Binary"}
    send(machine, "hello", MessageGroupId="acme", MessageAttributes={"t": text, "b": binary})
    machine.run_until_quiet()

    [record] = events[0]["Records"]
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    assert record["attributes"]["MessageGroupId"] == "acme"
    sent = int(record["attributes"]["SentTimestamp"]) / 1000
    assert sent == pytest.approx(machine.clock.now(), abs=0.01)
    assert record["eventSource"] == "aws:sqs"
    assert record["eventSourceARN"] == machine.queue("work").arn
    assert record["md5OfBody"] == "5d41402abc4b2a76b9719d911017c592"
    assert record["messageAttributes"]["t"]["stringValue"] == "yes"
    assert record["messageAttributes"]["b"]["binaryValue"] == "AAE="


def test_batch_is_no_larger_than_its_size(machine: Machine) -> None:
    seen = deliveries("work")
    send(machine, *"abcdefg")
    machine.run_until_quiet()
    assert [len(batch) for batch in seen] == [5, 2]


def test_only_failed_messages_come_back_after_their_visibility_timeout(machine: Machine) -> None:
    def fail_b_once(event: Event) -> Any:
        failed = [r for r in event["Records"] if r["body"] == "b" and len(seen) == 1]
        return {"batchItemFailures": [{"itemIdentifier": r["messageId"]} for r in failed]}

    seen = deliveries("work", fail_b_once)
    send(machine, "a", "b", "c")
    start = machine.clock.now()
    machine.run_until_quiet()
    assert seen == [["a", "b", "c"], ["b"]]
    assert machine.clock.now() - start == pytest.approx(60, abs=0.1)


@pytest.mark.parametrize(
    "answer", [None, {}, {"batchItemFailures": None}, NOTHING_FAILED, {"BatchItemFailures": [{}]}]
)
def test_answer_that_names_nothing_deletes_the_whole_batch(machine: Machine, answer: Any) -> None:
    """REQ-SQS-03: a key of the wrong case is no key at all."""
    seen = deliveries("work", lambda event: answer)
    send(machine, "a", "b")
    machine.run_until_quiet()
    assert seen == [["a", "b"]]


@pytest.mark.parametrize(
    "failures",
    [
        [{"itemIdentifier": ""}],
        [{"itemIdentifier": None}],
        [{"itemIdentifier": ["x"]}],
        [{"itemIdentifier": "unknown"}],
        [{"messageId": "x"}],
        ["x"],
        "x",
    ],
)
def test_failure_that_cannot_be_understood_fails_the_whole_batch(
    machine: Machine, failures: Any
) -> None:
    """REQ-SQS-03: the good records run again."""
    bad = {"batchItemFailures": failures}
    seen = deliveries("work", lambda event: bad if len(seen) == 1 else NOTHING_FAILED)
    send(machine, "a", "b")
    machine.run_until_quiet()
    assert seen == [["a", "b"], ["a", "b"]]


def test_mapping_without_partial_responses_ignores_them(machine: Machine) -> None:
    seen = deliveries("bury", lambda event: {"batchItemFailures": [{"itemIdentifier": ""}]})
    machine.client("sqs").send_message(QueueUrl=machine.queue_url("bury"), MessageBody="a")
    machine.run_until_quiet()
    assert seen == [["a"]]


def test_message_received_too_often_reaches_the_consumer_of_the_dead_letter_queue(
    machine: Machine,
) -> None:
    worked, buried = [], []

    def fail(event: Event, context: Any) -> Any:
        worked.extend(event["Records"])
        raise ValueError("no")

    Handlers.of["work"] = fail
    Handlers.of["bury"] = lambda event, context: buried.extend(event["Records"])
    send(machine, "bad", MessageGroupId="acme")
    machine.run_until_quiet()

    assert len(worked) == 2
    [record] = buried
    assert record["messageId"] == worked[0]["messageId"]
    assert record["body"] == "bad"
    assert record["attributes"]["DeadLetterQueueSourceArn"] == machine.queue("work").arn
    assert record["attributes"]["ApproximateReceiveCount"] == "3"
    assert machine.backlog() == {}


def test_dead_letter_queue_has_receives_of_its_own_before_it_gives_up_too(machine: Machine) -> None:
    def fail(event: Event) -> Any:
        raise ValueError("no")

    worked, buried = deliveries("work", fail), deliveries("bury", fail)
    send(machine, "bad")
    machine.run_until_quiet()
    assert (len(worked), len(buried)) == (2, 2)
    assert [waiting.body for waiting in machine.backlog()["LastQueue"]] == ["bad"]


def test_killed_process_acknowledges_nothing_and_driving_goes_on(machine: Machine) -> None:
    class Killed(BaseException):
        pass

    def die_once(event: Event) -> Any:
        if len(seen) == 1:
            raise Killed

    seen = deliveries("work", die_once)
    send(machine, "a", "b")
    machine.run_until_quiet()
    assert seen == [["a", "b"], ["a", "b"]]
    assert [type(crash.error) for crash in machine.crashes] == [Killed]
    assert machine.failures == []


def test_delay_is_passed_over_by_the_clock(machine: Machine) -> None:
    seen = deliveries("work")
    send(machine, "late", DelaySeconds=900)
    assert not machine.step()
    start = machine.clock.now()
    machine.run_until_quiet()
    assert seen == [["late"]]
    assert machine.clock.now() - start == pytest.approx(900, abs=0.1)


def test_function_can_change_how_long_its_message_stays_hidden(machine: Machine) -> None:
    times: list[float] = []

    def handle(event: Event, context: Any) -> Any:
        from stafette.aws.clients import sqs

        times.append(machine.clock.now())
        [record] = event["Records"]
        if len(times) > 1:
            return NOTHING_FAILED
        sqs().change_message_visibility(
            QueueUrl=machine.queue_url("work"),
            ReceiptHandle=record["receiptHandle"],
            VisibilityTimeout=7,
        )
        return {"batchItemFailures": [{"itemIdentifier": record["messageId"]}]}

    Handlers.of["work"] = handle
    send(machine, "a")
    machine.run_until_quiet()
    assert times[1] - times[0] == pytest.approx(7, abs=0.1)


def test_limit_raises_and_says_what_is_left_where(machine: Machine) -> None:
    def again(event: Event) -> Any:
        send(machine, "again")

    deliveries("work", again)
    send(machine, "again")
    with pytest.raises(NotQuietError, match=r"WorkQueue: .* visible.*: again"):
        machine.run_until_quiet(limit=20)


def test_schedules_run_at_their_time(machine: Machine) -> None:
    times: list[float] = []
    Handlers.of["sweep"] = lambda event, context: times.append(machine.clock.now())
    start = machine.clock.now()
    machine.run_until_quiet()
    assert times == []
    machine.run_for(150)
    assert [time - start for time in times] == pytest.approx([60, 120], abs=0.1)
    assert machine.clock.now() - start == pytest.approx(150)


def test_run_until_quiet_with_sweep_goes_on_with_what_the_schedule_sent(machine: Machine) -> None:
    seen = deliveries("work")
    rounds = iter([["a"], ["b"], []])
    Handlers.of["sweep"] = lambda event, context: send(machine, *next(rounds))
    machine.run_until_quiet(sweep=True)
    assert seen == [["a"], ["b"]]


def test_function_sees_its_own_environment_and_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setenv("OF_THE_TEST", "1")
    seen: dict[str, dict[str, str]] = {}

    def look(event: Event, context: Any) -> None:
        inner: list[str | None] = []
        thread = Thread(target=lambda: inner.append(os.environ.get("ONLY_WORK")))
        thread.start()
        thread.join()
        assert inner == [os.environ.get("ONLY_WORK")]
        os.environ["LEFT_BEHIND"] = "1"
        seen[context.function_name] = dict(os.environ)

    Handlers.of["work"] = Handlers.of["bury"] = look
    machine.invoke("work", {})
    machine.invoke("bury", {})
    work, bury = seen["stafette-local-Work"], seen["stafette-local-Bury"]
    assert (work["ONLY_WORK"], work["EXTRA"], bury["EXTRA"]) == ("1", "x", "x")
    assert "ONLY_WORK" not in bury
    assert "OF_THE_TEST" not in work
    assert "LEFT_BEHIND" not in os.environ


def test_context_tells_the_time_left_on_the_clock_in_force(machine: Machine) -> None:
    def spend(event: Event, context: Any) -> Any:
        before = context.get_remaining_time_in_millis()
        machine.clock.sleep(4)
        return [before, context.get_remaining_time_in_millis(), context.aws_request_id]

    Handlers.of["work"] = spend
    first, second = machine.invoke("work", {}), machine.invoke("work", {})
    assert first[:2] == pytest.approx([10_000, 6_000], abs=1)
    assert first[2] != second[2]


def put(event: Event, context: Any) -> Any:
    from stafette.aws.clients import dynamodb

    dynamodb().put_item(TableName="stafette-local-Table", Item={"pk": {"S": "a"}})


def test_calls_of_functions_are_kept_and_those_of_the_machine_are_not(machine: Machine) -> None:
    Handlers.of["work"] = put
    send(machine, "a")
    machine.run_until_quiet()
    [call] = machine.calls
    assert (call.service, call.operation, call.function) == ("dynamodb", "PutItem", "work")
    assert call.parameters["Item"] == {"pk": {"S": "a"}}
    assert call.response["ResponseMetadata"]["HTTPStatusCode"] == 200


@pytest.mark.parametrize(("phase", "stored"), [("before", 0), ("after", 1)])
def test_observer_stops_a_call_or_loses_its_answer(
    machine: Machine, phase: str, stored: int
) -> None:
    def fail(at: str, call: Call) -> None:
        if at == phase:
            raise TimeoutError(call.operation)

    Handlers.of["work"] = put
    remove = machine.on_call(fail)
    with pytest.raises(TimeoutError):
        machine.invoke("work", {})
    remove()
    assert machine.client("dynamodb").scan(TableName=machine.table)["Count"] == stored


def test_published_notices_can_be_read(machine: Machine) -> None:
    def publish(event: Event, context: Any) -> None:
        from stafette.aws.clients import sns

        sns().publish(
            TopicArn=machine.template.topics["Ended"].arn,
            Message=json.dumps({"job_id": "j1"}),
            MessageAttributes={"status": {"DataType": "String", "StringValue": "done"}},
        )

    Handlers.of["work"] = publish
    machine.invoke("work", {})
    [notice] = machine.published
    assert json.loads(notice["message"]) == {"job_id": "j1"}
    assert notice["attributes"] == {"status": "done"}


def test_concurrent_updates_lose_nothing(machine: Machine) -> None:
    """Without the lock around moto this gave 928."""

    def add() -> None:
        for _ in range(60):
            machine.client("dynamodb").update_item(
                TableName=machine.table,
                Key={"pk": {"S": "n"}},
                UpdateExpression="ADD n :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )

    threads = [Thread(target=add) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    item = machine.client("dynamodb").get_item(TableName=machine.table, Key={"pk": {"S": "n"}})
    assert item["Item"]["n"] == {"N": "960"}


def test_threads_deliver_up_to_the_maximum_concurrency_and_no_more(template: Path) -> None:
    together = Barrier(2, timeout=20)  # passes only if two run at once
    most: list[int] = []

    def handle(event: Event, context: Any) -> None:
        most.append(next(m.busy for m in running.mappings if m.function.name == "work"))
        together.wait()

    with Machine(template, clock=RealClock()) as running:
        Handlers.of["work"] = handle
        send(running, *(str(n) for n in range(20)))
        running.start()
        assert running.wait_until_quiet(30)
        running.stop()
        assert running.failures == []
    assert max(most) == 2


def test_threads_need_a_clock_that_runs(machine: Machine) -> None:
    with pytest.raises(ValueError, match="RealClock"):
        machine.start()


def test_machine_leaves_the_process_as_it_was(template: Path) -> None:
    import os
    import sys

    from stafette import clock

    before = (dict(os.environ), type(os.environ), list(sys.path), clock._Clock.now)
    with Machine(template) as machine:
        machine.invoke("work", {})
    assert (dict(os.environ), type(os.environ), list(sys.path), clock._Clock.now) == before
