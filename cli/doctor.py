"""`stafette doctor`: whether a deployed stack is fit for work, check by check, with what to do where it is not.

It reads, and sends one ticket that says that it is a test. Permissions that the caller lacks are said so: where
they tell nothing of the stack, they are no failure of it.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import boto3
import typer
from botocore.exceptions import ClientError
from rich.console import Console
from rich.text import Text

from cli import inbox
from cli.deployed import Deployed
from cli.errors import Trouble, code, explained, refused
from cli.stack import FAILED, USAGE, connected, console, on_stack, stop
from local import show, story
from local.story import Story
from stafette import clock
from stafette.aws import dead, store
from stafette.core.messages import Request

TENANT = "stafette-doctor"
_TEXT = "This is a test by `stafette doctor`: nobody wrote it, and nobody waits for an answer."
_INPUT = {"text": _TEXT, "customer": {"name": TENANT}}
_EVERY = 0.5
_AT_REST = {
    *("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE"),
    "IMPORT_ROLLBACK_COMPLETE",
}
_DEPLOY = "deploy it again: `make build`, `sam deploy`"

State = Literal["ok", "fails", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: `unknown` is no failure. `advice` is what to do about it."""

    check: str
    state: State
    found: str
    advice: str = ""


class Patient:
    """The stack under examination, and the clients to look at it with."""

    def __init__(self, stack: Deployed) -> None:
        self.stack = stack
        self._attributes: dict[str, dict[str, str]] = {}

    def client(self, service: str) -> Any:
        """A client of the session that the command was given."""
        return boto3.client(service)  # type: ignore[call-overload]

    def queue(self, name: str) -> dict[str, str]:
        """Attributes of a queue: its ARN and how much lies in it."""
        if name not in self._attributes:
            answer = self.client("sqs").get_queue_attributes(
                QueueUrl=self.stack.queues[name],
                AttributeNames=["QueueArn", "ApproximateNumberOfMessages"],
            )
            self._attributes[name] = answer["Attributes"]
        return self._attributes[name]


def stack_is_at_rest(patient: Patient) -> Iterator[Finding]:
    """CloudFormation is done, and did not fail."""
    status = patient.stack.status
    state: State = "ok" if status in _AT_REST else "fails"
    yield Finding("stack", state, status, "wait until it is done, or see its events: `sam list`")


def outputs_are_there(patient: Patient) -> Iterator[Finding]:
    """Every function that has a queue has its output, and the other way round."""
    stack = patient.stack
    wanted = {f"{name}FunctionName" for name in _fed(stack)}
    wanted |= {"DeadQueueUrl", "TerminalQueueUrl", "SweepFunctionName", "ModelProvider"}
    missing = sorted(wanted - stack.outputs.keys())
    if missing:
        yield Finding("outputs", "fails", f"lacks {', '.join(missing)}", _DEPLOY)
    else:
        yield Finding("outputs", "ok", f"{len(stack.outputs)}")


def _fed(stack: Deployed) -> list[str]:
    """Names of the queues that a function of the same name takes from. `bury` takes from the dead-letter queue."""
    return [name for name in stack.queues if name not in ("Dead", "Terminal")]


def queues_are_reachable(patient: Patient) -> Iterator[Finding]:
    """Each queue answers."""
    waiting = 0
    for name in patient.stack.queues:
        try:
            waiting += int(patient.queue(name)["ApproximateNumberOfMessages"])
        except ClientError as error:
            yield _of_error(f"queue {name}", error, _DEPLOY)
            return
    yield Finding("queues", "ok", f"{len(patient.stack.queues)} answer, {waiting} messages wait")


def mappings_are_enabled(patient: Patient) -> Iterator[Finding]:
    """Each function takes from its queue."""
    mappings = {name: name for name in _fed(patient.stack)} | {"Bury": "Dead"}
    advice = "enable it: `aws lambda update-event-source-mapping --enabled --uuid {}`"
    sound = 0
    for function, queue in mappings.items():
        check = f"mapping {function}"
        name = patient.stack.outputs.get(f"{function}FunctionName")
        if name is None:  # told already, as a missing output
            continue
        arn = patient.queue(queue)["QueueArn"]
        answer = patient.client("lambda").list_event_source_mappings(
            FunctionName=name, EventSourceArn=arn
        )
        found = answer["EventSourceMappings"]
        if not found:
            yield Finding(check, "fails", f"{name} does not take from its queue", _DEPLOY)
        for each in found:
            if each["State"] == "Enabled":
                sound += 1
            else:
                yield Finding(check, "fails", each["State"], advice.format(each["UUID"]))
    if sound == len(mappings):
        yield Finding("mappings", "ok", f"{sound} enabled")


def table_is_safe(patient: Patient) -> Iterator[Finding]:
    """The table is active, forgets what has expired, and can be restored to any point in time."""
    name = patient.stack.outputs["TableName"]
    dynamodb = patient.client("dynamodb")
    status = dynamodb.describe_table(TableName=name)["Table"]["TableStatus"]
    ttl = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    backups = dynamodb.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    recovery = backups.get("PointInTimeRecoveryDescription", {})
    faults = []
    if status not in ("ACTIVE", "UPDATING"):
        faults.append(f"it is {status}")
    if (ttl.get("TimeToLiveStatus"), ttl.get("AttributeName")) != ("ENABLED", "expires"):
        faults.append(f"expiry is {ttl.get('TimeToLiveStatus')}")
    if recovery.get("PointInTimeRecoveryStatus") != "ENABLED":
        faults.append("point-in-time recovery is off")
    if faults:
        yield Finding("table", "fails", ", ".join(faults), _DEPLOY)
    else:
        yield Finding("table", "ok", "active, with expiry and point-in-time recovery")


def nothing_is_dead(patient: Patient) -> Iterator[Finding]:
    """Neither the dead-letter queue nor the terminal queue holds anything."""
    for name, advice in (
        ("Dead", "`bury` should be taking these: see its mapping and its log"),
        (
            "Terminal",
            "`bury` failed five times: see its log, then send them back to the dead queue",
        ),
    ):
        many = int(patient.queue(name)["ApproximateNumberOfMessages"])
        state: State = "fails" if many else "ok"
        yield Finding(
            f"{name.lower()} queue", state, f"{many} messages" if many else "empty", advice
        )


def model_is_configured(patient: Patient) -> Iterator[Finding]:
    """A model is named, and where it needs a key there is one."""
    provider = patient.stack.outputs["ModelProvider"]
    base_url = patient.stack.parameters.get("ModelBaseUrl", "")
    if provider == "bedrock":
        profile = patient.stack.parameters.get("BedrockProfile", "")
        yield Finding("model", "ok", f"Bedrock, inference profiles {profile or 'by default'}")
        return
    if base_url and not (
        urlsplit(base_url).scheme in ("http", "https") and urlsplit(base_url).netloc
    ):
        yield Finding("model", "fails", f"ModelBaseUrl is no URL: {base_url}", _DEPLOY)
    else:
        yield Finding("model", "ok", base_url or "the Anthropic API")
    yield _key(patient)


def _key(patient: Patient) -> Finding:
    """Whether the key can be read. What it is is never shown, nor kept."""
    name = patient.stack.outputs.get("ModelKeySecret", "")
    make = f"make it: `aws secretsmanager create-secret --name {name} --secret-string ...`"
    try:
        answer = patient.client("secretsmanager").get_secret_value(SecretId=name)
    except ClientError as error:
        if refused(error):
            return Finding(
                "key", "unknown", f"you may not read {name}; the functions have roles of their own"
            )
        return _of_error("key", error, make)
    # A value that is JSON is what the console makes of `key/value`: the API would be given all of it as the key.
    value = str(answer.get("SecretString", "")).strip()
    with suppress(ValueError):
        if isinstance(json.loads(value), dict):
            return Finding(
                "key", "fails", f"{name} is JSON, not the key itself", "store the plain key"
            )
    if not value:
        return Finding("key", "fails", f"{name} is empty", make)
    return Finding("key", "ok", f"{name} can be read")


CHECKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    stack_is_at_rest,
    outputs_are_there,
    queues_are_reachable,
    mappings_are_enabled,
    table_is_safe,
    nothing_is_dead,
    model_is_configured,
)


def examined(patient: Patient) -> Iterator[Finding]:
    """All that can be seen without doing anything."""
    for check in CHECKS:
        about = check.__name__.replace("_", " ")
        try:
            yield from check(patient)
        except Trouble as error:
            yield _of_error(about, error, "")
        except KeyError as error:
            yield Finding(about, "fails", f"the stack has no output {error}", _DEPLOY)


def _of_error(check: str, error: BaseException, advice: str) -> Finding:
    gone = {
        "ResourceNotFoundException",
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
    }
    if isinstance(error, ClientError) and code(error) in gone:
        return Finding(check, "fails", f"is not there ({error.operation_name})", advice)
    return Finding(check, "fails", explained(error), advice)


def through(deadline: float) -> Finding:
    """A ticket through all stages, marked as a test by its tenant and its text."""
    name = f"doctor-{datetime.fromtimestamp(clock.now(), UTC):%Y%m%dT%H%M%S.%fZ}"
    request = Request(request_id=name, tenant=TENANT, input=_INPUT)
    [sent] = inbox.put([request])
    began = time.monotonic()
    while True:
        head = store.head(sent.job_id)
        waited = time.monotonic() - began
        if head is not None and head.status.ended:
            break
        if head is None and (kept := dead.find(sent.message_id)):
            why = f"intake refused it: {kept['reason']}: {kept['detail']}"
            return Finding("ticket", "fails", why, "deploy what this command is part of")
        if waited >= deadline:
            where = f"it is at {head.stage}" if head else "intake has not taken it"
            advice = f"follow it: `stafette show {sent.job_id}`, and the log of that function"
            return Finding("ticket", "fails", f"not done after {waited:.0f} s: {where}", advice)
        time.sleep(_EVERY)
    told = story.read(sent.job_id)
    assert told is not None
    return _of_ticket(told, waited)


def _of_ticket(told: Story, waited: float) -> Finding:
    head = told.head
    if head.status.value != "done":
        advice = f"`stafette show {head.job_id}` tells all"
        return Finding("ticket", "fails", f"{head.status.value}: {show.ending(head)}", advice)
    offline = any(made.call.provider == "offline" for made in told.calls)
    by = "offline rules, no language model; " if offline else ""
    cost = f"{len(told.calls)} model calls, {by}{show.usd(told.cost_micro)} at list price"
    return Finding("ticket", "ok", f"done in {waited:.1f} s: {cost}")


@on_stack
def doctor(
    ticket: Annotated[
        bool, typer.Option("--ticket/--no-ticket", help="Send a test ticket and wait for it.")
    ] = True,
    deadline: Annotated[
        float, typer.Option(min=0, help="Seconds that the test ticket may take.")
    ] = 180.0,
) -> None:
    """Check that a deployed stack is fit for work. Exit code 0: it is, 1: something fails."""
    with connected() as stack:
        if stack.deployed is None:
            stop("doctor looks at a deployed stack: name it with --stack", USAGE)
        findings = list(examined(Patient(stack.deployed)))
        if ticket:
            findings.append(through(deadline))
        _print(findings, console())
    if any(each.state == "fails" for each in findings):
        raise typer.Exit(FAILED)


def _print(findings: list[Finding], out: Console) -> None:
    table = show.grid("check", "", "found", "what to do")
    styles = {"ok": "green", "fails": "red", "unknown": "yellow"}
    for each in findings:
        advice = each.advice if each.state != "ok" else ""
        state = Text(each.state, style=styles[each.state])
        table.add_row(each.check, state, show.line(each.found, 300), advice)
    out.print(table)
