"""Failures seen in public (REQ-...): the stack of the template, played by hand, and a few words to speak with it."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local.calls import Call
from local.mappings import Mapping
from tests import support


class Stack(support.Stack):
    """The whole stack, one delivery at a time."""

    def mapping(self, function: str) -> Mapping:
        """What plays the queue of a function."""
        return next(m for m in self.machine.mappings if m.function.name == function)

    def run_to(self, function: str) -> None:
        """Runs until something waits for a function that could take it now."""
        queue = self.machine.queue(function)
        self.run_until(lambda: self.machine.backend.deliverable(queue) > 0)

    def take(self, function: str) -> tuple[list[Any], dict[str, Any]]:
        """Receives the next batch of a function: its messages and its event."""
        batch = self.mapping(function).take()
        assert batch, f"nothing waits for {function}"
        return batch, self.mapping(function).event(batch)

    def items(self, sk: str = "") -> list[dict[str, Any]]:
        """All items whose sort key starts so."""
        scan = self.machine.client("dynamodb").get_paginator("scan")
        pages = scan.paginate(TableName=self.machine.table)
        found = (support.read_item(item) for page in pages for item in page["Items"])
        return [item for item in found if item["sk"].startswith(sk)]

    def calls(self, operation: str, holding: str = "") -> list[Call]:
        """The calls of an operation that functions made, with some text in their parameters."""
        return [
            call
            for call in self.machine.calls
            if call.operation == operation and holding in str(call.parameters)
        ]


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
    assert set(answer) == {"batchItemFailures"}
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def aws_error(code: str, operation: str) -> ClientError:
    """What botocore raises for an error code."""
    return ClientError({"Error": {"Code": code, "Message": ""}}, operation)


@pytest.fixture
def stack() -> Iterator[Stack]:
    with support.running_stack() as running:
        yield Stack(running.machine, running.model)
