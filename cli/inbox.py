"""Puts requests on the queue of intake, ten at a time, and tells which job each becomes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stafette import clock, settings
from stafette.aws import artifacts, clients
from stafette.aws.queues import BATCH_LIMIT, BODY_LIMIT
from stafette.core.messages import Request, job_id

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

_BATCH = 10
_TRIES = 5
_FOLDER = artifacts.INBOX.removeprefix("artifacts/").rstrip("/")


class NotAcceptedError(Exception):
    """The queue did not take a message."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request on its way: the job it becomes, and the message that it travels in."""

    job_id: str
    message_id: str


def put(requests: Sequence[Request]) -> Iterator[Sent]:
    """Sends requests in their order; gives each once the queue has taken it.

    Raises:
        NotAcceptedError: the queue refused a message, or was busy for too long. What came before is sent.
    """
    for batch in _batches(requests):
        yield from _put(batch)


def _batches(requests: Sequence[Request]) -> Iterator[list[tuple[Request, str]]]:
    batch: list[tuple[Request, str]] = []
    size = 0
    for request in requests:
        body = _body(request)
        if batch and (len(batch) == _BATCH or size + len(body) > BATCH_LIMIT):
            yield batch
            batch, size = [], 0
        batch.append((request, body))
        size += len(body)
    if batch:
        yield batch


def _body(request: Request) -> str:
    """As it travels: itself, or the reference to where it lies. The body is ASCII: its length is its bytes."""
    body = request.to_body()
    return body if len(body) <= BODY_LIMIT else artifacts.put(body, _FOLDER).to_body()


def _put(batch: list[tuple[Request, str]]) -> list[Sent]:
    """Sends one batch, and again only what was not accepted."""
    taken: dict[int, str] = {}
    for attempt in range(_TRIES):
        if attempt:
            clock.sleep(0.2 * 2**attempt)
        entries: list[SendMessageBatchRequestEntryTypeDef] = [
            {"Id": str(n), "MessageBody": body, "MessageGroupId": request.tenant}
            for n, (request, body) in enumerate(batch)
            if n not in taken
        ]
        answer = clients.sqs().send_message_batch(
            QueueUrl=settings.queue("intake"), Entries=entries
        )
        for done in answer.get("Successful", []):
            taken[int(done["Id"])] = done["MessageId"]
        for failed in answer.get("Failed", []):
            if failed["SenderFault"]:
                raise NotAcceptedError(f"the queue refused a message: {failed['Code']}")
        if len(taken) == len(batch):
            break
    else:
        raise NotAcceptedError("the queue is busy: not everything was sent")
    return [
        Sent(job_id(request.tenant, request.request_id, taken[n]), taken[n])
        for n, (request, _) in enumerate(batch)
    ]
