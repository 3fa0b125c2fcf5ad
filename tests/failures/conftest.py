"""The stack of the template on one machine that plays by hand, and a few words to speak with it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from boto3.dynamodb.types import TypeDeserializer

from local.calls import Call
from local.machine import Machine
from local.mappings import Mapping
from local.model import OfflineModel, serve_model
from stafette.core import messages

TENANT = "acme"
_deserialize = TypeDeserializer().deserialize


class Stack:
    """A machine, the offline model behind it, and what a test asks of both."""

    def __init__(self, machine: Machine, model: OfflineModel) -> None:
        self.machine, self.model = machine, model

    # --- sending -------------------------------------------------------------------------------------------

    def send(self, function: str, body: str) -> str:
        """Puts a body on the queue of a function, and returns the id of its message."""
        answer = self.machine.client("sqs").send_message(
            QueueUrl=self.machine.queue_url(function), MessageBody=body, MessageGroupId=TENANT
        )
        return str(answer["MessageId"])

    def ask(self, request_id: str = "r1", records: int = 0, **given: Any) -> str:
        """Asks for a ticket, and returns the id of its job."""
        self.send("intake", json.dumps(request(request_id, records, **given)))
        return messages.job_id(TENANT, request_id, "")

    # --- one delivery at a time ----------------------------------------------------------------------------

    def mapping(self, function: str) -> Mapping:
        return next(m for m in self.machine.mappings if m.function.name == function)

    def run_to(self, function: str) -> None:
        """Runs until something waits for a function that could take it now."""
        for _ in range(200):
            if self.machine.backend.deliverable(self.machine.queue(function)):
                return
            assert self.machine.step() is not None, f"nothing ever came to {function}"
        raise AssertionError(f"nothing came to {function} in 200 deliveries")

    def take(self, function: str) -> tuple[list[Any], dict[str, Any]]:
        """Receives the next batch of a function: its messages and its event."""
        mapping = self.mapping(function)
        batch = mapping.take()
        assert batch, f"nothing waits for {function}"
        return batch, mapping.event(batch)

    # --- looking -------------------------------------------------------------------------------------------

    def items(self, sk: str = "") -> list[dict[str, Any]]:
        """All items whose sort key starts so."""
        pages = (
            self.machine.client("dynamodb")
            .get_paginator("scan")
            .paginate(TableName=self.machine.table)
        )
        plain = ({n: _deserialize(v) for n, v in i.items()} for p in pages for i in p["Items"])
        return [item for item in plain if item["sk"].startswith(sk)]

    def head(self, job_id: str) -> dict[str, Any]:
        return next(item for item in self.items("JOB") if item["pk"] == f"JOB#{job_id}")

    def dead(self) -> list[dict[str, Any]]:
        return self.items("DEAD")

    def outbox(self) -> list[str]:
        """The places of all that was done to the outside."""
        answer = self.machine.client("s3").list_objects_v2(
            Bucket=self.machine.bucket, Prefix="outbox/"
        )
        return [found["Key"] for found in answer.get("Contents", [])]

    def calls(self, operation: str, *, holding: str = "") -> list[Call]:
        """The calls of an operation that functions made, with some text in their parameters."""
        return [
            call
            for call in self.machine.calls
            if call.operation == operation and holding in str(call.parameters)
        ]


def request(request_id: str | None = "r1", records: int = 0, **given: Any) -> dict[str, Any]:
    """A request for a ticket with so many records."""
    asked = {
        "text": "My card was stolen, please block it!",
        "records": [
            {"kind": "order", "id": f"order-{n}", "text": f"Order {n}."} for n in range(records)
        ],
    }
    return {"request_id": request_id, "tenant": TENANT, "flow": "ticket", "input": asked | given}


def event(*bodies: str, function: str = "intake", first: int = 1) -> dict[str, Any]:
    """An SQS batch event with these bodies, under the message ids m1, m2, ..."""
    return {
        "Records": [
            {
                "messageId": f"m{n}",
                "receiptHandle": f"receipt-{n}",
                "body": body,
                "attributes": {"ApproximateReceiveCount": "1"},
                "messageAttributes": {},
                "eventSource": "aws:sqs",
                "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{function}",
                "awsRegion": "us-east-1",
            }
            for n, body in enumerate(bodies, first)
        ]
    }


def failed(answer: dict[str, Any]) -> list[str]:
    """The identifiers that a handler returned as failed."""
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


class Killed(BaseException):
    """The end of a process: nothing in it is caught on the way."""


@pytest.fixture
def stack() -> Iterator[Stack]:
    with (
        serve_model() as model,
        Machine(
            model_access={"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
        ) as machine,
    ):
        yield Stack(machine, model)
