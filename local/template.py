"""template.yaml as typed data, read through the SAM translator: what runs here is what deploys.

Nothing is listed a second time. Names are derived from logical ids the way CloudFormation does it, without the
random end, so that URLs and ARNs are known before anything is created.
"""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import boto3
from samtranslator.parser.parser import Parser  # type: ignore[import-untyped]
from samtranslator.translator.translator import Translator  # type: ignore[import-untyped]
from samtranslator.yaml_helper import yaml_parse  # type: ignore[import-untyped]

from local.intrinsics import Identity, Intrinsics, TemplateError

ACCOUNT = "123456789012"
REGION = "us-east-1"
STACK = "stafette-local"
_UNPLACED = "s3://local/code"
_RATE = re.compile(r"rate\((\d+) (second|minute|hour|day)s?\)")
_UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}


@dataclass(frozen=True)
class Queue:
    logical_id: str
    name: str
    url: str
    arn: str
    attributes: Mapping[str, str]  # as CreateQueue takes them

    @property
    def dead_letters(self) -> str | None:
        """ARN of the queue that takes what was received too often."""
        policy = self.attributes.get("RedrivePolicy")
        return json.loads(policy)["deadLetterTargetArn"] if policy else None


@dataclass(frozen=True)
class Table:
    logical_id: str
    name: str
    properties: Mapping[str, Any]  # of AWS::DynamoDB::Table, resolved


@dataclass(frozen=True)
class Bucket:
    logical_id: str
    name: str


@dataclass(frozen=True)
class Topic:
    logical_id: str
    name: str
    arn: str


@dataclass(frozen=True)
class Function:
    logical_id: str
    name: str  # its folder, as people say it: enrich_record
    physical: str
    arn: str
    folder: Path
    handler: str  # app.handler
    timeout: int  # seconds
    memory: int  # MB
    variables: Mapping[str, str]
    reserved: int | None  # concurrent executions


@dataclass(frozen=True)
class EventSource:
    """One event source mapping of a queue."""

    function: str  # logical id
    queue: str  # logical id
    batch_size: int
    window: int  # seconds
    concurrency: int
    partial: bool  # ReportBatchItemFailures


@dataclass(frozen=True)
class Schedule:
    name: str
    function: str  # logical id
    every: int  # seconds
    arn: str
    source: str  # aws.scheduler or aws.events


@dataclass(frozen=True)
class Template:
    queues: Mapping[str, Queue]
    tables: Mapping[str, Table]
    buckets: Mapping[str, Bucket]
    topics: Mapping[str, Topic]
    functions: Mapping[str, Function]
    sources: tuple[EventSource, ...]
    schedules: tuple[Schedule, ...]
    layers: tuple[Path, ...]
    outputs: Mapping[str, str]


def load(path: Path, parameters: Mapping[str, Any] | None = None) -> Template:
    """Reads a template.

    Args:
        path: the template; code is looked for beside it.
        parameters: values for its parameters, instead of the defaults.

    Raises:
        TemplateError: it asks for something that cannot be played here.
        samtranslator.model.exceptions.InvalidDocumentException: it would not deploy either.
    """
    given = tuple(sorted((parameters or {}).items()))
    return _load(path.read_text(encoding="utf-8"), path.resolve().parent, given)


def parsed(path: Path) -> dict[str, Any]:
    """A template as it is written; intrinsic functions in their long form."""
    document: dict[str, Any] = yaml_parse(path.read_text(encoding="utf-8"))
    return document


def translated(document: dict[str, Any], parameters: Mapping[str, Any] | None = None) -> Any:
    """What CloudFormation gets for a parsed template: after the SAM translator, before anything is resolved."""
    return _reader(document, parameters or {}, Path()).document


def resolved(
    document: dict[str, Any], parameters: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """What CloudFormation would create for a parsed template, by logical id, with every reference followed."""
    return _reader(document, parameters or {}, Path()).resources()


def code_places(document: dict[str, Any]) -> dict[str, str]:
    """Where a parsed template says that the code of each function and layer is."""
    return _take_code_places(deepcopy(document))


@lru_cache(maxsize=16)
def _load(text: str, root: Path, given: tuple[tuple[str, Any], ...]) -> Template:
    return _reader(yaml_parse(text), dict(given), root).template()


def _reader(document: dict[str, Any], given: Mapping[str, Any], root: Path) -> "_Reader":
    document = deepcopy(document)
    parameters = {
        name: spec.get("Default", "") for name, spec in document.get("Parameters", {}).items()
    } | dict(given)
    code = _take_code_places(document)
    return _Reader(_translate(document, parameters), parameters, root, code)


def _take_code_places(document: dict[str, Any]) -> dict[str, str]:
    """Where the code of each resource is. The translator takes only places in S3, as after `sam package`."""
    shared = document.get("Globals", {}).get("Function", {}).pop("CodeUri", None)
    places = {}
    for logical_id, resource in document["Resources"].items():
        key = {
            "AWS::Serverless::Function": "CodeUri",
            "AWS::Serverless::LayerVersion": "ContentUri",
        }.get(resource["Type"])
        if key:
            properties = resource.setdefault("Properties", {})
            places[logical_id] = properties.get(key, shared or ".")
            properties[key] = _UNPLACED
    return places


def _translate(document: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    session = boto3.Session(
        region_name=REGION, aws_access_key_id="local", aws_secret_access_key="local"
    )
    # No managed policies by name: roles are not played, and looking names up would ask IAM.
    translator = Translator({}, Parser(), boto_session=session)
    translated: dict[str, Any] = translator.translate(deepcopy(document), dict(parameters))
    return translated


@dataclass
class _Reader:
    document: dict[str, Any]
    given: dict[str, Any]
    root: Path
    code: dict[str, str]
    _known: dict[str, Identity] = field(default_factory=dict)

    def template(self) -> Template:
        functions = {
            key: self._function(key, value) for key, value in self._each("AWS::Lambda::Function")
        }
        by_arn = {function.arn: key for key, function in functions.items()}
        queues = {key: self._queue(key, value) for key, value in self._each("AWS::SQS::Queue")}
        sources = [
            self._source(value, queues)
            for _, value in self._each("AWS::Lambda::EventSourceMapping")
        ]
        return Template(
            queues=queues,
            tables={
                key: Table(key, self._identity(key).ref, value)
                for key, value in self._each("AWS::DynamoDB::Table")
            },
            buckets={
                key: Bucket(key, self._identity(key).ref)
                for key, _ in self._each("AWS::S3::Bucket")
            },
            topics={
                key: Topic(key, self._attribute(key, "TopicName"), self._identity(key).ref)
                for key, _ in self._each("AWS::SNS::Topic")
            },
            functions=functions,
            sources=tuple(source for source in sources if source),
            schedules=tuple(self._schedules(by_arn)),
            layers=tuple(
                self.root / place for key, place in self.code.items() if key not in functions
            ),
            outputs={
                key: str(self.intrinsics.resolve(value["Value"]))
                for key, value in self.document.get("Outputs", {}).items()
                if "Condition" not in value or self.intrinsics.holds(value["Condition"])
            },
        )

    def resources(self) -> dict[str, dict[str, Any]]:
        return {
            key: {**resource, "Properties": properties}
            for kind in {resource["Type"] for resource in self.document["Resources"].values()}
            for key, properties in self._each(kind)
            if (resource := self.document["Resources"][key])
        }

    @cached_property
    def intrinsics(self) -> Intrinsics:
        pseudo = {
            "AWS::AccountId": ACCOUNT,
            "AWS::Region": REGION,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
            "AWS::StackName": STACK,
            "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{STACK}/local",
        }
        return Intrinsics(self.document, self.given | pseudo, self._identity)

    def _each(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for logical_id, resource in self.document["Resources"].items():
            if resource["Type"] != kind:
                continue
            if "Condition" in resource and not self.intrinsics.holds(resource["Condition"]):
                continue
            yield logical_id, self.intrinsics.resolve(resource.get("Properties", {}))

    def _identity(self, logical_id: str) -> Identity:
        if logical_id not in self._known:
            try:
                resource = self.document["Resources"][logical_id]
            except KeyError:
                raise TemplateError(f"there is no resource or parameter {logical_id}") from None
            self._known[logical_id] = self._identify(logical_id, resource)
        return self._known[logical_id]

    def _identify(self, logical_id: str, resource: Mapping[str, Any]) -> Identity:
        properties = resource.get("Properties", {})

        def name(key: str, end: str = "") -> str:
            own = self.intrinsics.resolve(properties.get(key))
            return str(own) if own else f"{STACK}-{logical_id}{end}"

        match resource["Type"]:
            case "AWS::SQS::Queue":
                queue = name("QueueName", ".fifo" if properties.get("FifoQueue") else "")
                url = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{queue}"
                arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"
                return Identity(url, {"Arn": arn, "QueueName": queue, "QueueUrl": url})
            case "AWS::DynamoDB::Table":
                table = name("TableName")
                return Identity(
                    table, {"Arn": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{table}"}
                )
            case "AWS::S3::Bucket":
                bucket = name("BucketName").lower()
                return Identity(bucket, {"Arn": f"arn:aws:s3:::{bucket}"})
            case "AWS::SNS::Topic":
                topic = name("TopicName")
                arn = f"arn:aws:sns:{REGION}:{ACCOUNT}:{topic}"
                return Identity(arn, {"TopicArn": arn, "TopicName": topic})
            case "AWS::Lambda::Function":
                function = name("FunctionName")
                return Identity(
                    function, {"Arn": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{function}"}
                )
        own = f"{STACK}-{logical_id}"
        return Identity(own, {"Arn": f"arn:aws:local:{REGION}:{ACCOUNT}:{own}"})

    def _attribute(self, logical_id: str, attribute: str) -> str:
        return self._identity(logical_id).attributes[attribute]

    def _queue(self, logical_id: str, properties: dict[str, Any]) -> Queue:
        attributes = {
            key: json.dumps(value) if isinstance(value, dict | bool) else str(value)
            for key, value in properties.items()
            if key not in ("QueueName", "Tags")
        }
        identity = self._identity(logical_id)
        return Queue(
            logical_id,
            identity.attributes["QueueName"],
            identity.ref,
            identity.attributes["Arn"],
            attributes,
        )

    def _function(self, logical_id: str, properties: dict[str, Any]) -> Function:
        if logical_id not in self.code:
            raise TemplateError(f"{logical_id}: only AWS::Serverless::Function is played")
        variables = properties.get("Environment", {}).get("Variables", {})
        folder = self.root / self.code[logical_id]
        return Function(
            logical_id=logical_id,
            name=folder.name,
            physical=self._identity(logical_id).ref,
            arn=self._attribute(logical_id, "Arn"),
            folder=folder,
            handler=properties["Handler"],
            timeout=int(properties.get("Timeout", 3)),
            memory=int(properties.get("MemorySize", 128)),
            variables={
                key: json.dumps(value) if isinstance(value, bool) else str(value)
                for key, value in variables.items()
            },
            reserved=properties.get("ReservedConcurrentExecutions"),
        )

    def _source(
        self, properties: dict[str, Any], queues: Mapping[str, Queue]
    ) -> EventSource | None:
        if "FilterCriteria" in properties:
            raise TemplateError("event filters are not played")
        if properties.get("Enabled") is False:
            return None
        by_arn = {queue.arn: key for key, queue in queues.items()}
        by_name = {self._identity(key).ref: key for key, _ in self._each("AWS::Lambda::Function")}
        try:
            queue = by_arn[properties["EventSourceArn"]]
        except KeyError:
            raise TemplateError(
                f"not a queue of this template: {properties['EventSourceArn']}"
            ) from None
        return EventSource(
            function=by_name[properties["FunctionName"]],
            queue=queue,
            batch_size=int(properties.get("BatchSize", 10)),
            window=int(properties.get("MaximumBatchingWindowInSeconds", 0)),
            # Without a limit AWS starts with five pollers and adds more; ten is plenty on one machine.
            concurrency=int(properties.get("ScalingConfig", {}).get("MaximumConcurrency", 10)),
            partial="ReportBatchItemFailures" in properties.get("FunctionResponseTypes", []),
        )

    def _schedules(self, functions: Mapping[str, str]) -> Iterator[Schedule]:
        arn = f"arn:aws:{{}}:{REGION}:{ACCOUNT}:{{}}"
        for key, value in self._each("AWS::Scheduler::Schedule"):
            if value.get("State") != "DISABLED" and value["Target"]["Arn"] in functions:
                every = _seconds(value["ScheduleExpression"])
                function = functions[value["Target"]["Arn"]]
                place = arn.format("scheduler", f"schedule/default/{key}")
                yield Schedule(key, function, every, place, "aws.scheduler")
        for key, value in self._each("AWS::Events::Rule"):
            for target in value.get("Targets", []):
                if "ScheduleExpression" in value and target["Arn"] in functions:
                    every = _seconds(value["ScheduleExpression"])
                    place = arn.format("events", f"rule/{key}")
                    yield Schedule(key, functions[target["Arn"]], every, place, "aws.events")


def _seconds(expression: str) -> int:
    match = _RATE.fullmatch(expression)
    if not match:
        raise TemplateError(f"only rate(...) is played, not {expression}")
    return int(match[1]) * _UNITS[match[2]]
