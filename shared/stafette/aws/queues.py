"""Sending and hiding messages. A body over the limit goes to S3 and a reference travels instead."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stafette import clock, settings
from stafette.aws import artifacts, clients
from stafette.aws.failures import FAILED_CALLS, translated
from stafette.core.body import open_body, read_json
from stafette.core.errors import RefusedError, TransientError
from stafette.core.follow_ups import Send
from stafette.core.messages import AnyWork, Message, read_ref, read_work
from stafette.core.retry import backoff

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

# Bytes that SQS takes in one message, and in all messages of one batch call.
MESSAGE_LIMIT = 1_048_576
# What rides in a message, and what one batch call may sum up to: the rest is headroom.
BODY_LIMIT = 200_000
BATCH_LIMIT = 1_000_000
_BATCH_TRIES = 4


@dataclass(frozen=True, slots=True)
class NotSent:
    """A message that the service says it will never take, and its code."""

    send: Send
    code: str


def to_body(message: Message, folder: str) -> str:
    """A message as it travels: itself, or the reference to where it lies."""
    body = message.to_body()
    # The body is ASCII: its length is its bytes.
    if len(body) <= BODY_LIMIT:
        return body
    return artifacts.put(body, folder).to_body()


def from_body(body: str) -> AnyWork:
    """The message that a body is or refers to.

    Raises:
        RefusedError: it is not a message of ours.
    """
    value = open_body(body)
    if value is None:
        raise RefusedError(
            "a service's test message came to a queue between stages", reason="unknown_envelope"
        )
    ref = read_ref(value)
    return read_work(value if ref is None else read_json(artifacts.get(ref)))


def from_outside(body: str) -> dict[str, Any] | None:
    """What a stranger's message is or refers to, as a JSON object; None for a service's test message.

    Raises:
        RefusedError: it is no JSON object, or refers to what strangers may not name.
    """
    value = open_body(body)
    if value is None:
        return None
    ref = read_ref(value)
    return value if ref is None else read_json(artifacts.get(ref, within=artifacts.INBOX))


def send(send: Send) -> None:
    """Sends one message.

    Raises:
        TransientError: the queue is busy. PermanentError: the message can never be sent.
    """
    body = to_body(send.message, send.message.job_id)
    try:
        clients.sqs().send_message(
            QueueUrl=settings.queue(send.to),
            MessageBody=body,
            DelaySeconds=send.delay,
            MessageGroupId=send.message.tenant,
        )
    except FAILED_CALLS as error:
        raise translated(error) from error


def send_all(sends: Sequence[Send]) -> list[NotSent]:
    """Sends messages to one queue, ten at a time, and again only those that were not accepted.

    Returns:
        The messages that the service calls the sender's fault: sending them again would not help.

    Raises:
        TransientError: some were still not accepted after a few tries; the accepted ones may be sent again.
    """
    refused: list[NotSent] = []
    for chunk in _chunks([(send, to_body(send.message, send.message.job_id)) for send in sends]):
        refused += _send_chunk(chunk)
    return refused


def message_size(body: str, attributes: Mapping[str, Mapping[str, str]] | None = None) -> int:
    """Bytes of a message as SQS counts them: UTF-8 of the body, and of names, types and values of attributes."""
    texts = [body]
    for name, attribute in (attributes or {}).items():
        texts += [name, *attribute.values()]
    return sum(len(text.encode()) for text in texts)


def hide(function: str, receipt: str, seconds: float) -> None:
    """Makes a message that this invocation returns as failed come back after so many seconds."""
    try:
        clients.sqs().change_message_visibility(
            QueueUrl=settings.queue(function),
            ReceiptHandle=receipt,
            VisibilityTimeout=max(0, min(43_200, int(seconds) + 1)),
        )
    except FAILED_CALLS as error:
        raise translated(error) from error


def backlog(function: str) -> int:
    """How many messages wait to be received by a function: about, as the service counts."""
    try:
        answer = clients.sqs().get_queue_attributes(
            QueueUrl=settings.queue(function), AttributeNames=["ApproximateNumberOfMessages"]
        )
    except FAILED_CALLS as error:
        raise translated(error) from error
    return int(answer["Attributes"]["ApproximateNumberOfMessages"])


def function_of(queue_name: str) -> str | None:
    """The function that a queue feeds, if this function knows the queue."""
    found = (name for name, url in settings.queues().items() if url.endswith(f"/{queue_name}"))
    return next(found, None)


def _chunks(entries: list[tuple[Send, str]]) -> Iterator[list[tuple[Send, str]]]:
    chunk: list[tuple[Send, str]] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == 10 or size + len(entry[1]) > BATCH_LIMIT):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += len(entry[1])
    if chunk:
        yield chunk


def _send_chunk(chunk: list[tuple[Send, str]]) -> list[NotSent]:
    refused: list[NotSent] = []
    left = dict(enumerate(chunk))
    for attempt in range(_BATCH_TRIES):
        if attempt:
            clock.sleep(backoff(0, clock.chance()) / 8 * 2**attempt)
        failed = _accepted_in_part(left)
        refused += [NotSent(left[i][0], code) for i, (code, final) in failed.items() if final]
        left = {i: left[i] for i, (_, final) in failed.items() if not final}
        if not left:
            return refused
    raise TransientError(
        f"{len(left)} of {len(chunk)} messages were not accepted", reason="queue_busy"
    )


def _accepted_in_part(entries: dict[int, tuple[Send, str]]) -> dict[int, tuple[str, bool]]:
    """Sends a batch; returns what was not accepted: its code, and whether that is final."""
    batch: list[SendMessageBatchRequestEntryTypeDef] = [
        {
            "Id": str(i),
            "MessageBody": body,
            "DelaySeconds": send.delay,
            "MessageGroupId": send.message.tenant,
        }
        for i, (send, body) in entries.items()
    ]
    queue = settings.queue(next(iter(entries.values()))[0].to)
    try:
        answer = clients.sqs().send_message_batch(QueueUrl=queue, Entries=batch)
    except FAILED_CALLS as error:
        raise translated(error) from error
    return {int(f["Id"]): (f["Code"], f["SenderFault"]) for f in answer.get("Failed", [])}


def resend_body(function: str, body: str, tenant: str, origin: str) -> None:
    """Puts a kept body back on the queue it came from; `origin` is the id of the message it first came in."""
    attributes: Any = {"origin": {"DataType": "String", "StringValue": origin}}
    if message_size(body, attributes) > MESSAGE_LIMIT:
        # It filled a message to the brim when it came; with its origin it is too large. Whoever takes it takes a ref.
        body = artifacts.put(body, "inbox").to_body()
    try:
        clients.sqs().send_message(
            QueueUrl=settings.queue(function),
            MessageBody=body,
            MessageGroupId=tenant,
            MessageAttributes=attributes,
        )
    except FAILED_CALLS as error:
        raise translated(error) from error
