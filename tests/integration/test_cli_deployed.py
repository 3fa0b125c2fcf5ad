"""The command line on a stack that CloudFormation knows: by its outputs, with the local machine behind them."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, TokenRetrievalError
from moto import mock_aws
from typer.testing import CliRunner

from cli.deployed import snake
from cli.doctor import Finding, Patient, examined
from cli.errors import explained
from cli.main import app
from cli.stack import Choice, _deployed
from local import resources
from local.clock import RealClock
from local.machine import TEMPLATE, Machine
from local.model import OfflineModel, error, serve_model
from local.template import REGION, Template, load
from stafette.core.messages import job_id

SAMPLE = Path(__file__).resolve().parents[2] / "events" / "ticket.json"
STACK = "stafette-test"


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with credentials and a region, and none of the machine's own."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "STAFETTE_STACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str, gives: int = 0, given: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=given)
    assert result.exit_code == gives, f"{result.output}\n{result.exception!r}"
    return result.output


def declare(outputs: dict[str, str], name: str = STACK) -> None:
    """A stack with these outputs. What it is made of is there already, or is not looked at."""
    template = {
        "Parameters": {"ModelBaseUrl": {"Type": "String", "Default": ""}},
        "Resources": {"Something": {"Type": "AWS::SQS::Queue"}},
        "Outputs": {key: {"Value": value} for key, value in outputs.items()},
    }
    boto3.client("cloudformation", region_name=REGION).create_stack(
        StackName=name, TemplateBody=json.dumps(template)
    )


# --- the commands ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Iterator[OfflineModel]:
    with serve_model() as model:
        yield model


@pytest.fixture
def machine(model: OfflineModel, account: None) -> Iterator[Machine]:
    access = {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
    silent = {"POWERTOOLS_METRICS_DISABLED": "true", "POWERTOOLS_LOG_LEVEL": "CRITICAL"}
    with Machine(clock=RealClock(), model_access=access, environment=silent) as machine:
        declare(dict(machine.outputs))
        machine.start()
        yield machine


def test_a_request_is_sent_followed_and_shown_on_a_deployed_stack(machine: Machine) -> None:
    said = run("send", str(SAMPLE), "--wait", "--stack", STACK)
    assert "1 done" in said
    assert "AWS calls" not in said  # nobody counts them there
    job = job_id("acme", "ticket-1001", "")
    assert job in run("jobs", "--stack", STACK)
    assert "acted" in run("watch", job, "--stack", STACK)
    assert "send_reply" in run("show", job[:8], "--stack", STACK, "--region", REGION)
    assert "is done" in run("cancel", job, "--stack", STACK, gives=1)
    assert "no dead messages" in run("dead", "list", "--stack", STACK)


def test_a_failed_job_is_reopened_on_a_deployed_stack(
    machine: Machine, model: OfflineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAFETTE_STACK", STACK)
    model.script(error(400, "invalid_request_error"))
    event = json.dumps({"request_id": "fails", "input": {"text": "My card was stolen"}})
    assert "1 failed" in run("send", "-", "--wait", given=event, gives=1)
    job = job_id("default", "fails", "")
    assert "reopened" in run("dead", "redrive", job)
    assert "done" in run("watch", job)


def test_doctors_ticket_goes_through_and_says_that_it_is_a_test(machine: Machine) -> None:
    said = run("doctor", "--stack", STACK, "--deadline", "60", gives=1)  # moto has no mappings here
    [line] = [line for line in said.splitlines() if line.startswith("ticket")]
    assert "ok" in line
    assert "offline rules, no language model" in line
    assert "stafette-doctor" in run("jobs", "--stack", STACK)


def test_doctor_says_where_its_ticket_is_when_the_deadline_is_over(machine: Machine) -> None:
    machine.stop()
    said = run("doctor", "--stack", STACK, "--deadline", "0", gives=1)
    assert "intake has not taken it" in said


# --- what may be wrong before anything is sent -------------------------------------------------


def refusal(code: str, operation: str = "DescribeStacks") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "said AWS"}}, operation)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (refusal("ExpiredToken"), "have expired"),
        (refusal("ExpiredTokenException"), "have expired"),
        (refusal("UnrecognizedClientException"), "does not take these credentials"),
        (refusal("AccessDenied"), "may not call DescribeStacks"),
        (refusal("SomethingNew"), "SomethingNew"),
        (TokenRetrievalError(provider="sso", error_msg="over"), "session is over"),
    ],
    ids=["expired", "expired-too", "unknown", "denied", "new", "sso"],
)
def test_an_error_of_aws_is_one_line_without_traceback(
    wrong: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise wrong

    monkeypatch.setattr("cli.deployed.find", fail)
    said = run("jobs", "--stack", STACK, gives=1)
    assert words in said
    assert said.count("\n") == 1


@mock_aws
def test_a_stack_that_is_not_there_is_said_with_where_was_looked() -> None:
    declare({"IntakeQueueUrl": "x"})
    assert f"no stack {STACK} in eu-west-1" in run(
        "jobs", "--stack", STACK, "--region", "eu-west-1", gives=3
    )
    assert "no stack other" in run("doctor", "--stack", "other", gives=3)


@mock_aws
def test_a_stack_of_something_else_is_told_by_what_it_lacks() -> None:
    declare({"IntakeQueueUrl": "x"})
    assert "no output TableName, BucketName, TopicArn" in run("jobs", "--stack", STACK, gives=1)


def test_without_credentials_or_profile_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "profile (nobody)" in run("jobs", "--stack", STACK, "--profile", "nobody", gives=1)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "no AWS credentials" in run("jobs", "--stack", STACK, gives=1)


def test_a_region_without_a_stack_is_refused_and_doctor_wants_a_deployed_one() -> None:
    assert "give --stack" in run("jobs", "--region", "eu-west-1", gives=2)


def test_an_error_of_aws_in_the_library_is_explained_by_its_cause() -> None:
    from stafette.aws.failures import translated

    wrong = translated(refusal("AccessDenied", "PutItem"))
    wrong.__cause__ = refusal("AccessDenied", "PutItem")
    assert explained(wrong).startswith("these credentials may not call PutItem")


def test_names_of_the_template_are_names_of_the_library() -> None:
    names = {function.logical_id: function.name for function in load(TEMPLATE).functions.values()}
    assert {key: snake(key) for key in names} == names


# --- doctor ------------------------------------------------------------------------------------


@pytest.fixture
def sound(account: None) -> Iterator[Template]:
    """A stack as `sam deploy` leaves it, as far as moto goes. Nothing is ever sent to it."""
    template = load(TEMPLATE)
    with mock_aws():
        resources.client.cache_clear()
        resources.create(template)
        _protect(template)
        _deploy_functions(template)
        boto3.client("secretsmanager").create_secret(
            Name=template.outputs["ModelKeySecret"], SecretString="a key"
        )
        declare(dict(template.outputs))
        yield template
        resources.client.cache_clear()


def _protect(template: Template) -> None:
    for table in template.tables.values():
        boto3.client("dynamodb").update_continuous_backups(
            TableName=table.name,
            PointInTimeRecoverySpecification=table.properties["PointInTimeRecoverySpecification"],
        )


def _deploy_functions(template: Template) -> None:
    trust = {
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "lambda.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ]
    }
    role = boto3.client("iam").create_role(
        RoleName="any", AssumeRolePolicyDocument=json.dumps(trust)
    )["Role"]["Arn"]
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("app.py", "")
    client = boto3.client("lambda")
    for function in template.functions.values():
        client.create_function(
            FunctionName=function.physical,
            Runtime="python3.13",
            Role=role,
            Handler=function.handler,
            Code={"ZipFile": code.getvalue()},
        )
    for source in template.sources:
        client.create_event_source_mapping(
            FunctionName=template.functions[source.function].physical,
            EventSourceArn=template.queues[source.queue].arn,
        )


def found() -> dict[str, Finding]:
    """What doctor finds, by check, without sending anything."""
    stack = _deployed(Choice(STACK))
    assert stack.deployed
    return {each.check: each for each in examined(Patient(stack.deployed))}


def failing() -> dict[str, Finding]:
    return {name: each for name, each in found().items() if each.state == "fails"}


def test_doctor_finds_nothing_wrong_with_a_sound_stack(sound: Template) -> None:
    said = run("doctor", "--no-ticket", "--stack", STACK)
    assert "fails" not in said
    assert "10 enabled" in said
    assert "11 answer" in said


def _disable_mapping(template: Template) -> None:
    client = boto3.client("lambda")
    name = template.outputs["DraftFunctionName"]
    [each] = client.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    client.update_event_source_mapping(UUID=each["UUID"], Enabled=False)


def _delete_mapping(template: Template) -> None:
    client = boto3.client("lambda")
    name = template.outputs["BuryFunctionName"]
    [each] = client.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    client.delete_event_source_mapping(UUID=each["UUID"])


def _delete_queue(template: Template) -> None:
    boto3.client("sqs").delete_queue(QueueUrl=template.outputs["ActQueueUrl"])


def _switch_recovery_off(template: Template) -> None:
    boto3.client("dynamodb").update_continuous_backups(
        TableName=template.outputs["TableName"],
        PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": False},
    )


def _switch_expiry_off(template: Template) -> None:
    boto3.client("dynamodb").update_time_to_live(
        TableName=template.outputs["TableName"],
        TimeToLiveSpecification={"AttributeName": "expires", "Enabled": False},
    )


def _leave_in_terminal_queue(template: Template) -> None:
    boto3.client("sqs").send_message(QueueUrl=template.outputs["TerminalQueueUrl"], MessageBody="x")


def _delete_key(template: Template) -> None:
    boto3.client("secretsmanager").delete_secret(
        SecretId=template.outputs["ModelKeySecret"], ForceDeleteWithoutRecovery=True
    )


def _key_as_json(template: Template) -> None:
    boto3.client("secretsmanager").put_secret_value(
        SecretId=template.outputs["ModelKeySecret"], SecretString='{"key": "x"}'
    )


@pytest.mark.parametrize(
    ("wrong", "check", "words"),
    [
        (_disable_mapping, "mapping Draft", "Disabled"),
        (_delete_mapping, "mapping Bury", "does not take from its queue"),
        (_delete_queue, "queue Act", "is not there"),
        (_switch_recovery_off, "table", "point-in-time recovery is off"),
        (_switch_expiry_off, "table", "expiry is DISABLED"),
        (_leave_in_terminal_queue, "terminal queue", "1 messages"),
        (_delete_key, "key", "is not there"),
        (_key_as_json, "key", "is JSON"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_doctor_finds_what_is_wrong_and_says_what_to_do(
    wrong: Any, check: str, words: str, sound: Template
) -> None:
    wrong(sound)
    finding = failing()[check]
    assert words in finding.found
    assert finding.advice
    assert words in run("doctor", "--no-ticket", "--stack", STACK, gives=1)


def test_a_key_that_the_caller_may_not_read_is_no_failure(
    sound: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Patient.client

    def client(self: Patient, service: str) -> Any:
        made = real(self, service)
        if service == "secretsmanager":
            made.meta.events.register("before-call", _refuse)
        return made

    def _refuse(**_: object) -> None:
        raise refusal("AccessDeniedException", "GetSecretValue")

    monkeypatch.setattr(Patient, "client", client)
    assert found()["key"].state == "unknown"
    assert "you may not read" in run("doctor", "--no-ticket", "--stack", STACK)


def test_outputs_that_are_missing_are_named(sound: Template) -> None:
    declare(
        {key: value for key, value in sound.outputs.items() if key != "DraftFunctionName"}, "less"
    )
    assert "lacks DraftFunctionName" in run("doctor", "--no-ticket", "--stack", "less", gives=1)
