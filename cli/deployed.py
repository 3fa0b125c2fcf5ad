"""A stack that CloudFormation knows: names and URLs come from its outputs, none is kept here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import boto3
from botocore.exceptions import ClientError

from cli.errors import code

_QUEUE = "QueueUrl"
# What the library asks the environment for, and the output that has it.
_NAMES = {"TABLE": "TableName", "BUCKET": "BucketName", "TOPIC": "TopicArn"}
# `EnrichRecord` of the template is `enrich_record` of the library.
_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class NotFoundError(Exception):
    """There is no such stack, or it is none of ours; says so in a sentence."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployed stack as CloudFormation describes it.

    Attributes:
        status: of CloudFormation, such as `UPDATE_COMPLETE`.
        parameters: what it was deployed with.
    """

    name: str
    region: str
    status: str
    outputs: Mapping[str, str]
    parameters: Mapping[str, str]

    @property
    def queues(self) -> dict[str, str]:
        """URL of each queue, by its name in the template without `Queue`: `EnrichRecord`."""
        return {
            key.removesuffix(_QUEUE): url
            for key, url in self.outputs.items()
            if key.endswith(_QUEUE)
        }

    @property
    def missing(self) -> list[str]:
        """Outputs that every command needs and that are not there."""
        return [key for key in (f"Intake{_QUEUE}", *_NAMES.values()) if key not in self.outputs]

    @property
    def environment(self) -> dict[str, str]:
        """What a function of the stack sees: the table, the bucket, the topic and the queues."""
        queues = {f"QUEUE_{snake(key).upper()}": url for key, url in self.queues.items()}
        names = {name: self.outputs[key] for name, key in _NAMES.items()}
        days = self.outputs.get("RetentionDays") or self.parameters.get("RetentionDays")
        return {**queues, **names, **({"RETENTION_DAYS": days} if days else {})}


def find(name: str, session: boto3.Session) -> Deployed:
    """The stack of that name in the session's account and region.

    Raises:
        NotFoundError: there is none.
        botocore.exceptions.ClientError, BotoCoreError: AWS did not answer, or refused.
    """
    try:
        [found] = session.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        # CloudFormation says ValidationError for a stack that is not there, and for a name that none can have.
        if code(error) != "ValidationError":
            raise
        raise NotFoundError(
            f"there is no stack {name} in {session.region_name}: --region and --profile say where to look"
        ) from error
    return Deployed(
        name=name,
        region=session.region_name,
        status=found["StackStatus"],
        outputs={each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])},
        parameters={
            each["ParameterKey"]: each.get("ParameterValue", "")
            for each in found.get("Parameters", [])
        },
    )


def snake(name: str) -> str:
    """`EnrichRecord` as `enrich_record`."""
    return _INNER_CAPITAL.sub("_", name).lower()
