"""Where moto alone would not do as AWS does: receipts, redrive, order, retention, windows, long polls."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError

from local import serve
from local.calls import Call
from local.clock import RealClock, VirtualClock
from local.functions import TimedOutError
from local.machine import Machine

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals: {Function: {Runtime: python3.13, Handler: app.handler, Timeout: 10}}
Resources:
  PlainQueue: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 60}}
  OrderedQueue: {Type: AWS::SQS::Queue, Properties: {FifoQueue: true, VisibilityTimeout: 60}}
  SlowQueue: {Type: AWS::SQS::Queue}
  LooseQueue: {Type: AWS::SQS::Queue, Properties: {MessageRetentionPeriod: 120}}
  Plain:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: plain/
      Events: {M: {Type: SQS, Properties: {Queue: !GetAtt PlainQueue.Arn, BatchSize: 1}}}
  Ordered:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: ordered/
      Events: {M: {Type: SQS, Properties: {Queue: !GetAtt OrderedQueue.Arn, BatchSize: 1}}}
  Gathering:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: gathering/
      Events:
        M:
          Type: SQS
          Properties: {Queue: !GetAtt SlowQueue.Arn, BatchSize: 25, MaximumBatchingWindowInSeconds: 20}
"""
APP = """
from MODULE import Handlers
def handler(event, context):
    return Handlers.of["NAME"](event)
"""
Event = dict[str, Any]


class Handlers:
    of: ClassVar[dict[str, Callable[[Event], Any]]] = {}


@pytest.fixture
def template(tmp_path: Path) -> Path:
    for name in ("plain", "ordered", "gathering"):
        (tmp_path / name).mkdir()
        app = APP.replace("NAME", name).replace("MODULE", __name__)
        (tmp_path / name / "app.py").write_text(app)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    Handlers.of = dict.fromkeys(("plain", "ordered", "gathering"), lambda event: None)
    return tmp_path / "template.yaml"


@pytest.fixture
def machine(template: Path) -> Iterator[Machine]:
    with Machine(template) as machine:
        yield machine


def send(machine: Machine, queue: str, *bodies: str, **more: Any) -> None:
    for body in bodies:
        url = machine.queue_url(queue)
        machine.client("sqs").send_message(QueueUrl=url, MessageBody=body, **more)


def bodies(event: Event) -> list[str]:
    return [record["body"] for record in event["Records"]]


def test_worker_that_lost_its_message_cannot_delete_it(machine: Machine) -> None:
    """Only the newest receipt handle deletes. With moto's rule the second worker's message would vanish."""
    sqs, url = machine.client("sqs"), machine.queue_url("LooseQueue")
    send(machine, "LooseQueue", "a")
    first = sqs.receive_message(QueueUrl=url, VisibilityTimeout=10)["Messages"][0]
    machine.clock.sleep(11)
    second = sqs.receive_message(QueueUrl=url, VisibilityTimeout=10)["Messages"][0]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert [waiting.body for waiting in machine.backlog()["LooseQueue"]] == ["a"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
    assert machine.backlog() == {}


def test_message_is_gone_when_its_retention_is_over(machine: Machine) -> None:
    sqs, url = machine.client("sqs"), machine.queue_url("LooseQueue")
    send(machine, "LooseQueue", "a")
    machine.clock.sleep(121)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    assert machine.backlog() == {}


def test_group_waits_for_its_first_message_and_others_do_not(machine: Machine) -> None:
    seen: list[str] = []

    def fail_first(event: Event) -> None:
        seen.extend(bodies(event))
        if seen == ["a1"]:
            raise ValueError("not now")

    Handlers.of["ordered"] = fail_first
    for body in ("a1", "a2", "b1"):
        more = {"MessageGroupId": body[0], "MessageDeduplicationId": body}
        send(machine, "OrderedQueue", body, **more)
    machine.run_until_quiet()
    assert seen == ["a1", "b1", "a1", "a2"]


def test_batch_fills_up_until_its_window_is_over(machine: Machine) -> None:
    seen: list[tuple[float, int]] = []
    start = machine.clock.now()
    Handlers.of["gathering"] = lambda event: seen.append(
        (machine.clock.now() - start, len(bodies(event)))
    )
    send(machine, "SlowQueue", "a", "b")
    assert machine.step() is None
    machine.run_until_quiet()
    assert seen == [(pytest.approx(20, abs=0.1), 2)]


def test_full_batch_larger_than_one_receive_does_not_wait(machine: Machine) -> None:
    seen: list[int] = []
    start = machine.clock.now()
    Handlers.of["gathering"] = lambda event: seen.append(len(bodies(event)))
    send(machine, "SlowQueue", *(str(n) for n in range(25)))
    machine.run_until_quiet()
    assert (seen, machine.clock.now()) == ([25], start)


def test_answer_after_the_functions_time_acknowledges_nothing(machine: Machine) -> None:
    seen: list[str] = []

    def linger_once(event: Event) -> None:
        seen.extend(bodies(event))
        if len(seen) == 1:
            machine.clock.sleep(11)

    Handlers.of["plain"] = linger_once
    send(machine, "PlainQueue", "a")
    machine.run_until_quiet()
    assert seen == ["a", "a"]
    assert [type(failure.error) for failure in machine.failures] == [TimedOutError]


def test_answer_that_is_not_json_fails_the_invocation(machine: Machine) -> None:
    Handlers.of["plain"] = lambda event: {1, 2}
    with pytest.raises(TypeError, match="JSON"):
        machine.invoke("plain", {})


def test_shuffle_reorders_a_standard_queue_but_never_a_group(template: Path) -> None:
    plain: list[str] = []
    ordered: list[str] = []
    with Machine(template, clock=VirtualClock(), shuffle=random.Random(7).shuffle) as machine:
        Handlers.of["plain"] = lambda event: plain.extend(bodies(event))
        Handlers.of["ordered"] = lambda event: ordered.extend(bodies(event))
        numbers = [str(n) for n in range(10)]
        send(machine, "PlainQueue", *numbers)
        for number in numbers:
            more = {"MessageGroupId": "g", "MessageDeduplicationId": number}
            send(machine, "OrderedQueue", number, **more)
        machine.run_until_quiet()
    assert sorted(plain) == numbers
    assert plain != numbers
    assert ordered == numbers


def test_calls_made_by_code_that_runs_inside_a_function_are_observed(machine: Machine) -> None:
    """A fault raised in the observer reaches the caller as the client's own error would."""

    def lose_answer(phase: str, call: Call) -> None:
        if phase == "after":
            raise ReadTimeoutError(endpoint_url=call.service)

    machine.on_call(lose_answer)
    sqs = boto3.client("sqs")
    with machine.inside("plain"), pytest.raises(ReadTimeoutError):
        sqs.send_message(QueueUrl=machine.queue_url("PlainQueue"), MessageBody="a")
    assert [call.operation for call in machine.calls] == ["SendMessage"]
    assert [waiting.body for waiting in machine.backlog()["PlainQueue"]] == ["a"]


def test_long_poll_over_http_stops_nobody_else(
    template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Machine(template, clock=RealClock()) as machine, serve.served(machine) as endpoint:
        session = boto3.Session("k", "s", region_name="us-east-1")
        client = session.client("sqs", endpoint_url=endpoint)
        url, found = machine.queue_url("LooseQueue"), []
        polling, wait = threading.Event(), machine.backend.changed.wait

        def poll() -> None:
            found.extend(client.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"])

        def told_wait(timeout: float | None = None) -> bool:
            polling.set()
            return wait(timeout)

        monkeypatch.setattr(machine.backend.changed, "wait", told_wait)
        poller = threading.Thread(target=poll)
        poller.start()
        assert polling.wait(10)
        send(machine, "LooseQueue", "a")
        poller.join(10)
        assert not poller.is_alive()
        client.close()
    assert [message["Body"] for message in found] == ["a"]
