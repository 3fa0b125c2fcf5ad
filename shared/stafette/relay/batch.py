"""The edge of every function: a batch of SQS records in, the ids of those that are to come back out.

What cannot be understood is kept and acknowledged. What failed comes back. Nothing is acknowledged by accident.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from stafette import clock, trace
from stafette.aws import dead, queues
from stafette.core.errors import EventShapeError, PermanentError, ThrottledError, TransientError
from stafette.core.retry import backoff

# Seconds that a record needs at least: with less left, it is not begun.
_LEAST = 2.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one message.

    Attributes:
        id: of the message; the same for each of its deliveries.
        origin: the id of the message that the body first came in.
        owner: the token that this delivery claims under: unique to the invocation and the message.
        ends: when the invocation is over, in seconds since the epoch.
        received: how often the message has been delivered, this time included.
        source: the queue that a dead message came from, as far as the service says.
    """

    id: str
    origin: str
    body: str
    owner: str
    ends: float
    received: int
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """The message is not done: it is to come back in so many seconds."""

    seconds: float


class _ReturnedError(Exception):
    """Tells the batch processor that a record did not finish."""


Take = Callable[[Delivery], Return | None]
Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


def batch_handler(function: str, take: Take) -> Handler:
    """The Lambda handler of a function that takes messages one by one.

    Args:
        function: the name of the function, which is that of its queue.
        take: called for each message; None acknowledges it.
    """

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        _check(event)

        def one(record: SQSRecord) -> None:
            _one(function, take, _delivery(record, context), record.receipt_handle)

        processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
        answer = process_partial_response(
            event=event, record_handler=one, processor=processor, context=context
        )
        # SQS may deliver a message twice in one batch: it is named once, and comes back if either did not finish.
        failed = dict.fromkeys(item["itemIdentifier"] for item in answer["batchItemFailures"])
        return {"batchItemFailures": [{"itemIdentifier": name} for name in failed]}

    return handler


def _one(function: str, take: Take, delivery: Delivery, receipt: str) -> None:
    if delivery.ends - clock.now() < _LEAST:
        queues.hide(function, receipt, 0)
        raise _ReturnedError
    try:
        returned = take(delivery)
    except PermanentError as refused:
        keep(function, delivery, reason=refused.reason, detail=str(refused))
        return
    except TransientError as error:
        trace.info("a message comes back", function=function, reason=error.reason, id=delivery.id)
        later = backoff(delivery.received, clock.chance())
        returned = Return(max(later, error.wait) if isinstance(error, ThrottledError) else later)
    except Exception:
        trace.failure("a message failed by a fault of ours", function=function, id=delivery.id)
        queues.hide(function, receipt, backoff(delivery.received, clock.chance()))
        raise
    if returned is not None:
        queues.hide(function, receipt, returned.seconds)
        raise _ReturnedError


def keep(function: str, delivery: Delivery, *, reason: str, detail: str, **known: str) -> None:
    """Keeps the body of a delivery as a dead record."""
    dead.keep(
        delivery.id,
        delivery.body,
        function=function,
        reason=reason,
        detail=detail,
        at=clock.now(),
        origin=delivery.origin,
        **known,
    )


def _check(event: Any) -> None:
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list) or not records:
        raise EventShapeError("the event holds no Records: it is not a batch from SQS")
    for record in records:
        if not isinstance(record, dict) or record.get("eventSource") != "aws:sqs":
            raise EventShapeError("the event holds a record that is not from SQS")


def _delivery(record: SQSRecord, context: Any) -> Delivery:
    attributes = record.raw_event.get("attributes", {})
    origin = record.raw_event.get("messageAttributes", {}).get("origin", {}).get("stringValue")
    source = attributes.get("DeadLetterQueueSourceArn")
    return Delivery(
        id=record.message_id,
        origin=origin or record.message_id,
        body=record.body,
        owner=f"{context.aws_request_id}/{record.message_id}",
        ends=clock.now() + context.get_remaining_time_in_millis() / 1000,
        received=int(attributes.get("ApproximateReceiveCount", 1)),
        source=source.rsplit(":", 1)[-1] if source else None,
    )
