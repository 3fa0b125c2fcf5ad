"""An event source mapping: takes batches from a queue, makes the event, and reads the answer the way Lambda does."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moto.sqs.models import Message

from local.backend import Backend
from local.functions import Outcome
from local.template import REGION, EventSource, Function, Queue


@dataclass
class Mapping:
    """One mapping at work. `busy` counts its invocations under way."""

    source: EventSource
    function: Function
    queue: Queue
    backend: Backend
    busy: int = 0
    _gathering: float | None = None  # since when a batch waits to fill up

    @property
    def concurrency(self) -> int:
        """How many batches may be worked on at once."""
        reserved = self.function.reserved
        return (
            self.source.concurrency if reserved is None else min(self.source.concurrency, reserved)
        )

    def take(self) -> list[Message]:
        """The next batch, or nothing if there is none or it still fills up."""
        with self.backend.lock:
            found = self.backend.deliverable(self.queue)
            now = self.backend.clock.now()
            if not found:
                self._gathering = None
                return []
            if self.source.window and found < self.source.batch_size:
                if self._gathering is None:
                    self._gathering = now
                if now < self._gathering + self.source.window:
                    return []
            self._gathering = None
            return self.backend.receive(self.queue, self.source.batch_size)

    def next_moment(self) -> float | None:
        """When there may be a batch that is not there now."""
        with self.backend.lock:
            moments = [self.backend.next_moment(self.queue)]
            if self._gathering is not None:
                moments.append(self._gathering + self.source.window)
            return min((moment for moment in moments if moment is not None), default=None)

    def event(self, batch: Sequence[Message]) -> dict[str, Any]:
        """The event that the function gets for a batch."""
        return {"Records": [_record(message, self.queue.arn) for message in batch]}

    def acknowledge(self, batch: Sequence[Message], outcome: Outcome) -> None:
        """Deletes what was done. What was not stays hidden until its visibility runs out, or is changed."""
        failed = failures(outcome, {m.id for m in batch}, partial=self.source.partial)
        done = [message for message in batch if message.id not in failed]
        if done:
            self.backend.delete(self.queue, done)


def failures(outcome: Outcome, batch: set[str], *, partial: bool) -> set[str]:
    """Ids of the messages that count as failed, by the rules of ReportBatchItemFailures.

    An answer that cannot be understood fails the whole batch; one that names nothing fails nothing.
    """
    if outcome.kind != "returned":
        return batch
    response = outcome.response
    if not partial or response is None:
        return set()
    if not isinstance(response, dict):
        return batch
    items = response.get("batchItemFailures")
    if items is None:
        return set()
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return batch
    named = [item.get("itemIdentifier") for item in items]
    if not all(isinstance(name, str) and name in batch for name in named):
        return batch
    return {str(name) for name in named}


def _record(message: Message, queue_arn: str) -> dict[str, Any]:
    attributes = {
        "ApproximateReceiveCount": str(message.approximate_receive_count),
        "SentTimestamp": str(message.sent_timestamp),
        "SenderId": message.sender_id,
        "ApproximateFirstReceiveTimestamp": str(message.approximate_first_receive_timestamp),
        "MessageGroupId": message.group_id,
        "MessageDeduplicationId": message.deduplication_id,
        "SequenceNumber": message.sequence_number,
        "AWSTraceHeader": (message.system_attributes.get("AWSTraceHeader") or {}).get(
            "StringValue"
        ),
        "DeadLetterQueueSourceArn": getattr(message, "source_arn", None),
    }
    return {
        "messageId": message.id,
        "receiptHandle": message.receipt_handle,
        "body": message.body,
        "attributes": {name: value for name, value in attributes.items() if value is not None},
        "messageAttributes": {
            name: _attribute(value) for name, value in message.message_attributes.items()
        },
        "md5OfBody": message.body_md5,
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": REGION,
    }


def _attribute(value: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "stringListValues": [],
        "binaryListValues": [],
        "dataType": value["DataType"],
    }
    if value.get("StringValue") is not None:
        record["stringValue"] = value["StringValue"]
    if value.get("BinaryValue") is not None:
        binary = value["BinaryValue"]
        record["binaryValue"] = (
            base64.b64encode(binary).decode() if isinstance(binary, bytes) else binary
        )
    return record
