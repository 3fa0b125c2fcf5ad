"""moto, made to behave as AWS does where it matters here. This module and quicker.py alone know moto's insides.

* One call at a time: concurrent updates are not atomic in moto.
* Our clock is its clock.
* Receives are counted per queue for redrive (moto would pass a message straight on from a dead-letter queue that has
  one of its own), a moved message names the queue it came from, and what outlived its retention is gone.
* An old receipt handle deletes nothing: the message belongs to whoever received it last.
* What is stored can be saved and put back, so that a run can be taken up again in the middle.
* It does the same with less work (quicker.py).
"""

import datetime as dt
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import botocore.endpoint
import moto.core.utils
import moto.dynamodb.models.table
import moto.s3.models
import moto.sns.models
import moto.sqs.models
from moto import mock_aws
from moto.core.models import botocore_stubber
from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.s3.models import s3_backends
from moto.sqs.exceptions import ReceiptHandleIsInvalid
from moto.sqs.models import Message, SQSBackend, sqs_backends
from moto.sqs.models import Queue as MotoQueue

from local import quicker
from local.clock import Clock, RealClock, naive_utc
from local.template import ACCOUNT, REGION, Queue

_CLOCKS = (moto.core.utils, moto.dynamodb.models.table, moto.s3.models, moto.sns.models)
# A message is visible strictly after its moment, and moments are milliseconds.
_TICK = 0.001
# Powertools reads the time by itself, through the module that it imported as `dt`.
_POWERTOOLS = (
    "aws_lambda_powertools.utilities.idempotency.base",
    "aws_lambda_powertools.utilities.idempotency.persistence.base",
    "aws_lambda_powertools.utilities.idempotency.persistence.datarecord",
)


Answer = tuple[int, Mapping[str, str], str | bytes] | None
Process = Callable[[Any], Answer]


@dataclass(frozen=True)
class Waiting:
    """A message that is still on a queue."""

    message_id: str
    body: str
    state: str  # visible, in flight, delayed
    received: int
    until: float  # when it can be received, seconds since the epoch


class Backend:
    """moto within this process.

    Attributes:
        changed: tells that a message came or changed its visibility.
        between: answers what botocore sends, in the place of moto, which it is handed with the request; it may raise
            what botocore raises of a connection.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.between: Callable[[Process, Any], Answer] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Starts moto empty, and at the end leaves nothing behind."""
        with ExitStack() as stack:
            stack.enter_context(mock_aws())
            for target, name, value in (*self._replacements(), *quicker.replacements()):
                stack.enter_context(patch.object(target, name, value))
            yield

    # --- what the event source mappings use: straight to the queues, which is neither slow nor counted -------------

    def receive(self, queue: Queue, count: int) -> list[Message]:
        """Up to `count` messages, each now in flight."""
        with self.lock:
            taken: list[Message] = []
            visibility = int(queue.attributes.get("VisibilityTimeout", 30))
            while len(taken) < count:  # ReceiveMessage gives ten at most
                some = self._sqs.receive_message(
                    queue.name, min(10, count - len(taken)), 0, visibility, ["All"]
                )
                if not some:
                    break
                taken += some
            return taken

    def delete(self, queue: Queue, messages: list[Message]) -> None:
        """As DeleteMessageBatch: those that others have received since stay."""
        with self.lock:
            receipts = [
                {"Id": str(n), "ReceiptHandle": m.receipt_handle} for n, m in enumerate(messages)
            ]
            self._sqs.delete_message_batch(queue.name, receipts)

    def settle(self, queue: Queue) -> None:
        """Moves on what was received too often, as the next receive would."""
        with self.lock:
            _settle(self._queue(queue), self.clock.now())

    def deliverable(self, queue: Queue) -> int:
        """How many messages a receive would find now, after what is used up has moved on."""
        with self.lock:
            held = self._queue(queue)
            _settle(held, self.clock.now())
            ready = held.messages
            if held.fifo_queue:
                busy = {m.group_id for m in held._messages if not m.visible}
                ready = [m for m in ready if m.group_id not in busy]
            return len(ready)

    def count(self, queue: Queue) -> int:
        """How many messages are on the queue, in whatever state."""
        return len(self._queue(queue)._messages)

    def next_moment(self, queue: Queue) -> float | None:
        """When the next message that cannot be received now can be."""
        with self.lock:
            now = self.clock.now()
            moments = (_until(message) for message in self._queue(queue)._messages)
            return min((moment for moment in moments if moment > now), default=None)

    def reorder(self, queue: Queue, shuffle: Any) -> None:
        """Puts the messages of a standard queue, which promises no order, in another one."""
        with self.lock:
            held = self._queue(queue)
            if not held.fifo_queue:
                shuffle(held._messages)

    def waiting(self, queue: Queue) -> list[Waiting]:
        """What is on the queue, without receiving it."""
        with self.lock:
            return [
                Waiting(m.id, m.body, _state(m), m.approximate_receive_count, _until(m))
                for m in self._queue(queue)._messages
            ]

    def items(self, table: str, pk: str | None = None) -> list[dict[str, Any]]:
        """The items of a table, or of one of its partitions, in order: without a call, which is slow."""
        with self.lock:
            partitions = self._tables()[table].items
            held = partitions.values() if pk is None else [partitions.get(_text(pk), {})]
            found = [item.to_json()["Attributes"] for items in held for item in items.values()]
        return sorted(found, key=lambda item: (item["pk"]["S"], item["sk"]["S"]))

    # --- what is stored, as a whole ----------------------------------------------------------------------------------

    def item(self, table: str, pk: str, sk: str) -> dict[str, Any] | None:
        """One item as it would be sent, without a call."""
        with self.lock:
            partition = self._tables()[table].items.get(DynamoType({"S": pk}), {})
            found = partition.get(DynamoType({"S": sk}))
            return None if found is None else found.to_json()["Attributes"]

    def save(self) -> bytes:
        """What tables, queues and buckets hold."""
        with self.lock:
            tables = {name: table.items for name, table in self._tables().items()}
            queues = {
                name: (queue._messages, queue._pending_messages, queue.deleted_messages)
                for name, queue in self._sqs.queues.items()
            }
            # The keys of a bucket are a mapping to lists of versions that shows the last of each.
            buckets = {
                name: {key: bucket.keys[key] for key in list(bucket.keys)}
                for name, bucket in self._buckets().items()
            }
            return pickle.dumps((tables, queues, buckets))

    def restore(self, saved: bytes) -> None:
        """Puts back what `save` gave; whatever came since is gone."""
        with self.lock:
            tables, queues, buckets = pickle.loads(saved)
            for name, table in self._tables().items():
                table.items.clear()
                table.items.update(tables[name])
            for name, queue in self._sqs.queues.items():
                queue._messages, queue._pending_messages, queue.deleted_messages = queues[name]
            for name, bucket in self._buckets().items():
                for key in list(bucket.keys):
                    bucket.keys[key].dispose()
                bucket.keys.clear()
                for key, value in buckets[name].items():
                    bucket.keys[key] = value

    def _tables(self) -> dict[str, Any]:
        return dict(dynamodb_backends[ACCOUNT][REGION].tables)

    def _buckets(self) -> dict[str, Any]:
        return dict(s3_backends[ACCOUNT]["aws"].buckets)

    @property
    def _sqs(self) -> SQSBackend:
        return sqs_backends[ACCOUNT][REGION]

    def _queue(self, queue: Queue) -> MotoQueue:
        return self._sqs.queues[queue.name]

    # --- what is put in moto's place -----------------------------------------------------------------------------

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        process, receive, add = (
            botocore_stubber.process_request,
            SQSBackend.receive_message,
            MotoQueue.add_message,
        )
        change = SQSBackend.change_message_visibility
        real = isinstance(self.clock, RealClock)

        def one_at_a_time(request: Any) -> Any:
            with self.lock:
                return self.between(process, request) if self.between else process(request)

        def settled_receive(
            sqs: SQSBackend,
            queue_name: str,
            count: int,
            wait: int,
            visibility: int,
            names: Any = None,
        ) -> list[Message]:
            queue = sqs.get_queue(queue_name)
            _settle(queue, self.clock.now())
            # Where time stands still nothing can arrive during a long poll.
            with patch.object(queue, "dead_letter_queue", None):
                return receive(sqs, queue_name, count, wait if real else 0, visibility, names)

        def telling_add(queue: MotoQueue, message: Message) -> None:
            add(queue, message)
            self.changed.notify_all()

        def telling_change(
            sqs: SQSBackend, queue_name: str, receipt_handle: str, visibility_timeout: int
        ) -> None:
            change(sqs, queue_name, receipt_handle, visibility_timeout)
            self.changed.notify_all()

        yield botocore_stubber, "process_request", one_at_a_time
        for module in _CLOCKS:
            yield module, "utcnow", lambda: naive_utc(self.clock.now())
        if not real:
            yield botocore.endpoint, "time", SimpleNamespace(sleep=self.clock.sleep)
            for name in _POWERTOOLS:
                yield import_module(name), "dt", _datetime_on(self.clock)
        yield moto.sqs.models, "unix_time", self.clock.now
        yield moto.sqs.models, "unix_time_millis", lambda: self.clock.now() * 1000
        yield SQSBackend, "receive_message", settled_receive
        yield SQSBackend, "change_message_visibility", telling_change
        yield SQSBackend, "is_message_valid_based_on_retention_period", lambda *_: True
        yield MotoQueue, "add_message", telling_add
        yield MotoQueue, "delete_message", _delete
        # A long poll lets go of the lock while it waits.
        yield MotoQueue, "wait_for_messages", lambda _, timeout: self.changed.wait(timeout)


def _text(value: str) -> DynamoType:
    return DynamoType({"S": value})


def _datetime_on(clock: Clock) -> SimpleNamespace:
    class Datetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Datetime":
            return cls.fromtimestamp(clock.now(), tz)

    return SimpleNamespace(datetime=Datetime, timedelta=dt.timedelta)


def _settle(queue: Any, now: float) -> None:
    """Moves on what was received too often, and drops what outlived its retention."""
    limit = queue.redrive_policy["maxReceiveCount"] if queue.dead_letter_queue else None
    moved = []
    for message in tuple(queue._messages):
        if message.sent_timestamp / 1000 + queue.message_retention_period <= now:
            moved.append((message, None))
            continue
        # AWS reports receives across all queues, but redrives by those on this one.
        here = message.approximate_receive_count - getattr(message, "carried", 0)
        if limit and message.visible and not message.delayed and here >= limit:
            moved.append((message, queue.dead_letter_queue))
    for message, target in moved:
        queue._messages.remove(message)
        queue._pending_messages.discard(message)
        if target is not None:
            message.carried = message.approximate_receive_count
            message.source_arn = queue.queue_arn
            target.add_message(message)


def _delete(queue: MotoQueue, receipt_handle: str) -> None:
    for place, message in enumerate(queue._messages):
        if message.receipt_handle == receipt_handle:
            del queue._messages[place]
            queue.pending_messages.discard(message)
            queue.deleted_messages.update(
                handle for handle in message.all_receipt_handles if handle
            )
            return
        if message.had_receipt_handle(receipt_handle):
            return
    if receipt_handle not in queue.deleted_messages:
        raise ReceiptHandleIsInvalid


def _until(message: Message) -> float:
    return max(message.visible_at, message.delayed_until) / 1000 + _TICK


def _state(message: Message) -> str:
    if message.delayed:
        return "delayed"
    return "visible" if message.visible else "in flight"
