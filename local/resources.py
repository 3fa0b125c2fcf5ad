"""Creates on moto what a template declares, and a queue behind each topic so that what is published can be read."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import boto3

from local.backend import Backend
from local.template import ACCOUNT, REGION, Queue, Table, Template, Topic

_TABLE_KEYS = (
    *("AttributeDefinitions", "KeySchema", "BillingMode", "ProvisionedThroughput"),
    *("GlobalSecondaryIndexes", "LocalSecondaryIndexes", "StreamSpecification"),
)


@dataclass(frozen=True)
class Published:
    """One message that a topic was given."""

    topic: str  # logical id
    message_id: str
    subject: str | None
    message: str
    attributes: dict[str, str]


@lru_cache
def session() -> boto3.Session:
    """The one session of the process, which holds what botocore read of the services."""
    return boto3.Session(
        aws_access_key_id="local", aws_secret_access_key="local", region_name=REGION
    )


@lru_cache
def client(service: str) -> Any:
    """The machinery's own clients, kept for the process: making one costs more than all its calls."""
    return cast("Any", session()).client(service)


def create(template: Template) -> None:
    """Creates everything. The names are those the template resolved to."""
    for queue in _dead_letters_first(template):
        client("sqs").create_queue(QueueName=queue.name, Attributes=dict(queue.attributes))
    for table in template.tables.values():
        _create_table(table)
    for bucket in template.buckets.values():
        client("s3").create_bucket(Bucket=bucket.name)
    for topic in template.topics.values():
        listener = _listener(topic)
        client("sqs").create_queue(QueueName=listener.name, Attributes=dict(listener.attributes))
        client("sns").create_topic(Name=topic.name)
        client("sns").subscribe(TopicArn=topic.arn, Protocol="sqs", Endpoint=listener.arn)


def published(template: Template, backend: Backend) -> Iterator[Published]:
    """What the topics were given, in order, without taking it away."""
    for topic in template.topics.values():
        for waiting in backend.waiting(_listener(topic)):
            envelope = json.loads(waiting.body)
            attributes = envelope.get("MessageAttributes", {})
            yield Published(
                topic.logical_id,
                envelope["MessageId"],
                envelope.get("Subject"),
                envelope["Message"],
                {name: value["Value"] for name, value in attributes.items()},
            )


def _create_table(table: Table) -> None:
    properties = {key: value for key, value in table.properties.items() if key in _TABLE_KEYS}
    client("dynamodb").create_table(TableName=table.name, **properties)
    if "TimeToLiveSpecification" in table.properties:
        client("dynamodb").update_time_to_live(
            TableName=table.name,
            TimeToLiveSpecification=table.properties["TimeToLiveSpecification"],
        )


def _dead_letters_first(template: Template) -> list[Queue]:
    """The queues in an order in which each finds its dead-letter queue."""
    by_arn = {queue.arn: queue for queue in template.queues.values()}
    ordered: dict[str, Queue] = {}

    def add(queue: Queue) -> None:
        target = by_arn.get(queue.dead_letters or "")
        if target and target.arn not in ordered and target is not queue:
            add(target)
        ordered[queue.arn] = queue

    visit: Callable[[Queue], None] = add
    for queue in template.queues.values():
        visit(queue)
    return list(ordered.values())


def _listener(topic: Topic) -> Queue:
    name = f"{topic.name}-published"
    return Queue(
        logical_id=f"{topic.logical_id}Published",
        name=name,
        url=f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{name}",
        arn=f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}",
        attributes={"MessageRetentionPeriod": "1209600"},
    )
