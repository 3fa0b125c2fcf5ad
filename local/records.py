"""What a machine holds and what its jobs came to, read from outside with clients whose calls are nobody's."""

import json
from dataclasses import dataclass
from typing import Any

from boto3.dynamodb.types import TypeDeserializer

from local.machine import Machine
from stafette.aws import dead, keys
from stafette.core.joins import ranges
from stafette.core.numbers import from_stored

Json = dict[str, Any]

_deserialize = TypeDeserializer().deserialize


@dataclass(frozen=True)
class Ending:
    """What a job came to, without what may differ from run to run: times, attempts, owners, costs."""

    stage: str
    status: str
    reason: str | None
    waits: bool
    results: dict[str, Any]
    parts: dict[str, Any]
    joins: dict[str, Any]
    journal: dict[str, str]
    effects: dict[str, str]
    outbox: dict[str, str]
    notices: tuple[str, ...]


@dataclass
class Records:
    """Reads the table, the bucket, the topic and the queues of a machine, mostly without calls: they are slow."""

    machine: Machine

    def item(self, pk: str, sk: str) -> Json | None:
        """One stored item."""
        return next((item for item in self.partition(pk) if item["sk"] == sk), None)

    def partition(self, pk: str) -> list[Json]:
        """The items of a partition, in order."""
        return [read_item(item) for item in self.machine.backend.items(self.machine.table, pk)]

    def head(self, job_id: str) -> Json:
        """The head of a job."""
        item = self.item(f"JOB#{job_id}", "JOB")
        assert item is not None, f"there is no job {job_id}"
        return item

    def journal(self, job_id: str) -> list[Json]:
        """The entries of a job's journal."""
        items = self.partition(f"JOB#{job_id}")
        return [item for item in items if item["sk"].startswith("EVENT#")]

    def dead(self, job_id: str | None = None) -> list[Json]:
        """The dead records that are listed: all, or those of a job."""
        found: list[Json] = []
        for shard in range(8):
            pages = self.machine.client("dynamodb").get_paginator("query")
            answers = pages.paginate(
                TableName=self.machine.table,
                IndexName="list",
                KeyConditionExpression="list_shard = :k",
                ExpressionAttributeValues={":k": {"S": f"DEAD#{shard}"}},
            )
            listed = [read_item(item) for page in answers for item in page["Items"]]
            found += [item for key in listed if (item := self.item(key["pk"], key["sk"]))]
        return [item for item in found if job_id in (None, item.get("job_id"))]

    def kept_body(self, record_id: str) -> str:
        """The whole body that a dead record keeps."""
        with self.machine.inside("bury"):
            record = dead.find(record_id)
        assert record is not None
        return str(record["body"])

    def notices(self, job_id: str) -> list[str]:
        """The events that the topic was told of a job, in order."""
        told = [json.loads(each["message"]) for each in self.machine.published]
        return [notice["event"] for notice in told if notice["job_id"] == job_id]

    def value(self, item: Json) -> str:
        """The JSON text of a stored value, wherever it lies."""
        if "value" in item:
            return str(item["value"])
        client, key = self.machine.client("s3"), item["ref"]["key"]
        body = client.get_object(Bucket=self.machine.bucket, Key=key)["Body"].read()
        return str(body.decode())

    def outbox(self, job_id: str) -> dict[str, str]:
        """The objects that the effects of a job left."""
        client, prefix = self.machine.client("s3"), f"outbox/{job_id}/"
        found = client.list_objects_v2(Bucket=self.machine.bucket, Prefix=prefix)
        names = [each["Key"] for each in found.get("Contents", [])]
        read = {
            name: client.get_object(Bucket=self.machine.bucket, Key=name)["Body"].read().decode()
            for name in names
        }
        return {key.removeprefix(prefix): body for key, body in read.items()}

    def ending(self, job_id: str) -> Ending:
        """What a job came to."""

        def plain(text: Any) -> Any:
            return text.replace(job_id, "JOB") if isinstance(text, str) else text

        items = {item["sk"]: item for item in self.partition(f"JOB#{job_id}")}
        head = items["JOB"]
        won = {name: f"RESULT#{name}#{n:04d}" for name, n in head["won"].items()}
        results = {name: items[sk] for name, sk in won.items() if sk in items}
        joins: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        for split in (name for name, item in results.items() if item.get("split")):
            total = len(json.loads(self.value(results[split])))
            join = None
            # A job that was opened again after its join keeps the counts of the generation that it joined in.
            for generation in range(head.get("generation", 0), -1, -1):
                pk, sk = keys.join(job_id, split, generation)
                if join is None and (top := self.item(pk, sk)):
                    join, joins[split] = sk, _counted(top)
            for n in range(ranges(total)):
                for item in self.partition(f"JOB#{job_id}#{split}#{n:03d}"):
                    if item["sk"] == join:
                        joins[f"{split}#{n:03d}"] = _counted(item)
                    elif item["sk"].startswith("PART#"):
                        ended = "reason" in item or "value" in item or "ref" in item
                        value = item.get("reason") or self.value(item) if ended else None
                        parts[f"{split}:{item['index']:05d}"] = plain(value)
        return Ending(
            stage=head["stage"],
            status=head["status"],
            reason=head.get("reason"),
            waits="due" in head or "owner" in head or "not_before" in head,
            results={name: plain(self.value(item)) for name, item in results.items()},
            parts=parts,
            joins=joins,
            journal={
                sk: f"{item['stage']} {item['status']}"
                for sk, item in items.items()
                if sk.startswith("EVENT#")
            },
            effects={sk: i["status"] for sk, i in items.items() if sk.startswith("EFFECT#")},
            outbox={key: plain(body) for key, body in self.outbox(job_id).items()},
            notices=tuple(sorted(set(self.notices(job_id)))),
        )

    def everything(self) -> list[Json]:
        """All items of the table."""
        return [read_item(item) for item in self.machine.backend.items(self.machine.table)]


def _counted(join: Json) -> tuple[int, int, tuple[int, ...]]:
    return join["completed"], join["failed"], tuple(sorted(join["members"]))


def read_item(item: Json) -> Json:
    """An item as Python has it."""
    return {name: from_stored(_deserialize(value)) for name, value in item.items()}
