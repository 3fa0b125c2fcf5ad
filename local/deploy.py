"""`python -m local.deploy`: the README's deploy section on this machine, with a worker killed in the middle of a job.

The commands are those of the README, as they stand there, in a copy of this tree. The AWS that they find is an
emulator which runs the functions as processes; the model is the offline one. Nothing is left behind.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import boto3
from rich.console import Console
from rich.table import Table

from local.emulator import Emulator, EmulatorError, emulator, make_up_for_differences, tail
from local.model import OfflineModel, Response, serve_model
from local.model_answers import answer
from stafette.core.messages import job_id

ROOT = Path(__file__).resolve().parent.parent
STACK = "stafette-dev"
_TICKET = ROOT / "events" / "ticket.json"
_COMMANDS = re.compile(r"^```sh (aws[^\n]*)\n(.*?)^```", re.M | re.S)
_RECORDS = 12
# Seconds.
_COMMAND_ENDS_WITHIN = 300
_JOB_ENDS_WITHIN = 180
# More than the function's time-out: a message that comes back finds that its lease is over.
_AFTER_TIMEOUT = 5


class NotAsPromisedError(Exception):
    """Something did not come out as it must; says what."""


class Deployment:
    """What the steps share.

    Args:
        aws: the emulator.
        model: who answers the functions.
        place: a folder for the copy of the tree, and the logs.
    """

    def __init__(self, aws: Emulator, model: OfflineModel, place: Path) -> None:
        self.aws = aws
        self.model = model
        self.place = place
        self.tree = place / "stafette"
        self.outputs: dict[str, str] = {}
        runtime = f"python{sys.version_info.major}.{sys.version_info.minor}"
        machine = "arm64" if os.uname().machine in ("arm64", "aarch64") else "x86_64"
        # The emulator runs functions with the Python and on the processor that it runs on itself.
        self.parameters = {
            "Runtime": runtime,
            "Architecture": machine,
            "ModelBaseUrl": model.base_url,
        }
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            **aws.environment,
            "PATH": f"{ROOT / '.venv-sam' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "RUNTIME": runtime,
            "ARCHITECTURE": machine,
            "SAM_CLI_TELEMETRY": "0",
            "STAFETTE_STACK": STACK,
            "COLUMNS": "140",
        }

    def run(self, command: str, answers: str = "") -> str:
        """Runs a command line in the copy of the tree; gives what it printed.

        Raises:
            NotAsPromisedError: it failed, or took too long.
        """
        with (self.place / "commands.log").open("a+") as log:
            log.write(f"\n$ {command}\n")
            log.flush()
            began = log.tell()
            process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.tree,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            try:
                process.communicate(answers, timeout=_COMMAND_ENDS_WITHIN)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            log.seek(began)
            said = log.read()
        if process.returncode:
            raise NotAsPromisedError(f"`{command}` gave {process.returncode}:\n{said[-4000:]}")
        return said

    def shown(self, job: str) -> dict[str, Any]:
        """All that the command line tells of a job."""
        told: dict[str, Any] = json.loads(self.run(f".venv/bin/stafette show {job} --json"))
        return told


def copy_tree(deployment: Deployment) -> str:
    """A clone, as it were: commands may write there what they like."""
    shutil.copytree(ROOT, deployment.tree, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    (deployment.tree / ".venv").symlink_to(ROOT / ".venv")
    # What the README says to have: the key, as a secret.
    boto3.client("secretsmanager").create_secret(Name="stafette/anthropic", SecretString="offline")
    return "a copy of this tree, and the secret with a key"


def commands(block: str) -> list[str]:
    """The command lines of a block of the README's deploy section: `aws`, `aws later`."""
    found = dict(_COMMANDS.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    return [line for line in found[block].splitlines() if line]


def run_command(deployment: Deployment, command: str) -> str:
    """One command of the README. What `sam deploy --guided` asks is answered by parameter, else with Enter."""
    if not command.startswith("sam deploy --guided"):
        return _last_line(deployment.run(command))
    names = re.findall(
        r"^  (\w+):\n    Type:", _section(deployment.tree / "template.yaml", "Parameters"), re.M
    )
    answers = ["", "", *(deployment.parameters.get(name, "") for name in names), *[""] * 10]
    deployment.run(command, "\n".join(answers))
    make_up_for_differences(STACK, deployment.tree / "template.yaml")
    given, deployment.outputs = _described()
    _must(deployment.parameters.items() <= given.items(), f"parameters are {given}")
    return f"deployed, {len(deployment.outputs)} outputs"


def _section(path: Path, name: str) -> str:
    return path.read_text(encoding="utf-8").partition(f"\n{name}:\n")[2].partition("\n\n\n")[0]


def _last_line(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if not line.startswith("make")]
    return next((line for line in reversed(lines) if line), "")


def first_ticket(deployment: Deployment) -> str:
    """events/ticket.json on the queue of intake, with plain boto3."""
    job, seconds = _sent(deployment, json.loads(_TICKET.read_text(encoding="utf-8")))
    return f"{job} done after {seconds:.1f} s"


def command_line(deployment: Deployment) -> str:
    """What else the README shows of the command line, on the deployed stack."""
    said = deployment.run(".venv/bin/stafette send events/ticket.json --wait")
    job = said.split()[0]
    _must("1 done" in said, said)
    _must(job in deployment.run(".venv/bin/stafette jobs"), "`jobs` does not list it")
    _must("send_reply" in deployment.run(f".venv/bin/stafette show {job}"), "`show` has no effect")
    _must("no dead" in deployment.run(".venv/bin/stafette dead list"), "there are dead messages")
    return "send --wait, jobs, show, dead list: the same request is the same job"


def killed_worker(deployment: Deployment, patient: bool) -> str:
    """A ticket with records, and `kill -9` for the processes that read them, while the model is thinking."""
    function = deployment.outputs["EnrichRecordFunctionName"]
    wait = _shortened(deployment, patient)
    asked, go_on = Event(), Event()

    def thinks(request: dict[str, Any]) -> Response:
        asked.set()
        go_on.wait(_JOB_ENDS_WITHIN)
        return Response(answer(request))

    def by_rules(request: dict[str, Any]) -> Response:
        return Response(answer(request))

    # The first request is that of classify, the second the first of a record.
    deployment.model.script(by_rules, thinks)
    event = json.loads(_TICKET.read_text(encoding="utf-8"))
    event["request_id"] = "deploy-local-killed"
    event["input"]["records"] = [
        {"id": f"r{n}", "text": f"Order 4711, charge {n}: 12.50 EUR, paid by card."}
        for n in range(_RECORDS)
    ]
    killed: list[int] = []

    def kill() -> None:
        _must(asked.wait(_JOB_ENDS_WITHIN), "no record came as far as the model")
        killed.extend(deployment.aws.workers(function))
        _must(bool(killed), f"no process runs {function}")
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        go_on.set()

    try:
        job, seconds = _sent(deployment, event, kill, within=wait + _JOB_ENDS_WITHIN)
    finally:
        go_on.set()
    told = deployment.shown(job)
    _check_once(deployment, told)
    cut = sum(call["outcome"] == "begun" for call in told["calls"])
    _must(cut > 0, "no model call was cut off: the kill came too late")
    return (
        f"{len(killed)} processes killed, {cut} model calls cut off; done after {seconds:.0f} s, "
        f"of which a message is hidden for {wait}; {_RECORDS} of {_RECORDS} records, "
        f"{len(told['effects'])} effects, each once"
    )


def _shortened(deployment: Deployment, patient: bool) -> int:
    """How long the queue hides a message. Six times the time-out by the template: here just over once, to save
    minutes. SQS takes that while a stack runs; the next deploy puts it back.
    """
    sqs, url = boto3.client("sqs"), deployment.outputs["EnrichRecordQueueUrl"]
    name = "VisibilityTimeout"
    if not patient:
        configuration = boto3.client("lambda").get_function_configuration(
            FunctionName=deployment.outputs["EnrichRecordFunctionName"]
        )
        shorter = str(configuration["Timeout"] + _AFTER_TIMEOUT)
        sqs.set_queue_attributes(QueueUrl=url, Attributes={name: shorter})
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
    return int(answer["Attributes"][name])


def _check_once(deployment: Deployment, told: dict[str, Any]) -> None:
    """All records were read, and nothing was done twice."""
    job = told["job"]["job_id"]
    [enriched] = [
        each["value"] for each in told["results"] if each["model"] == "Enriched" and each["won"]
    ]
    read = [finding["record"] for finding in enriched["findings"]]
    _must(read == [f"r{n}" for n in range(_RECORDS)], f"records read: {read}")
    _must((enriched["read"], enriched["failed"]) == (_RECORDS, 0), "not all records were read")
    effects = {each["sk"]: each["status"] for each in told["effects"]}
    _must(set(effects.values()) == {"COMPLETED"}, f"effects are {effects}")
    outbox = boto3.client("s3").list_objects_v2(
        Bucket=deployment.outputs["BucketName"], Prefix=f"outbox/{job}/"
    )
    letters = {Path(each["Key"]).stem for each in outbox.get("Contents", [])}
    of_outbox = {name.removeprefix("EFFECT#") for name in effects} & {
        "send_reply",
        "open_follow_up",
    }
    _must(letters == of_outbox, f"the outbox holds {letters}, the records tell of {of_outbox}")
    notices = [each for each in _notices(deployment) if each["job_id"] == job]
    _must(len(notices) == 1, f"{len(notices)} notices of the end of {job}")


def changed(deployment: Deployment, command: str) -> str:
    """Another deploy, of a stack with jobs in it: what holds data is what it was, and the parameters given before
    stand."""
    before = _described()
    deployment.run(command)
    make_up_for_differences(STACK, deployment.tree / "template.yaml")
    after = _described()
    name, _, value = command.rpartition(" ")[2].partition("=")
    _must(after[0] == before[0] | {name: value}, f"parameters are {after[0]}")
    kept = {each: after[1][each] for each in ("TableName", "BucketName", "IntakeQueueUrl")}
    _must(kept.items() <= before[1].items(), f"the outputs were {before[1]} and are {after[1]}")
    said = deployment.run(".venv/bin/stafette send events/ticket.json --wait")
    _must("1 done" in said, said)
    return f"{name} is {value}; table, bucket and queues as before; the job of before is there"


def deleted(deployment: Deployment, command: str) -> str:
    """The stack is gone, the table and the bucket are not, nor what is in them."""
    job = job_id(*(json.loads(_TICKET.read_text())[name] for name in ("tenant", "request_id")), "")
    deployment.run(command, "y\n" * 4)
    stacks = boto3.client("cloudformation").list_stacks()["StackSummaries"]
    left = [each["StackStatus"] for each in stacks if each["StackName"] == STACK]
    _must(set(left) <= {"DELETE_COMPLETE"}, f"the stack is {left}")
    functions = boto3.client("lambda").list_functions()["Functions"]
    queues = boto3.client("sqs").list_queues(QueueNamePrefix=STACK).get("QueueUrls", [])
    _must(not functions and not queues, f"left: {functions} {queues}")
    head = boto3.client("dynamodb").get_item(
        TableName=deployment.outputs["TableName"],
        Key={"pk": {"S": f"JOB#{job}"}, "sk": {"S": "JOB"}},
    )["Item"]
    _must(head["status"]["S"] == "done", f"the job is {head}")
    objects = boto3.client("s3").list_objects_v2(Bucket=deployment.outputs["BucketName"])
    _must(objects["KeyCount"] > 0, "the bucket is empty")
    return (
        f"no function, no queue; the table with the job and {objects['KeyCount']} objects are left"
    )


def _described() -> tuple[dict[str, str], dict[str, str]]:
    """Parameters and outputs of the stack."""
    [stack] = boto3.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    return (
        {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]},
        {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])},
    )


def listen(deployment: Deployment) -> str:
    """A queue behind the topic, to hear of jobs that ended."""
    sqs, topic = boto3.client("sqs"), deployment.outputs["TopicArn"]
    url = sqs.create_queue(QueueName="deploy-local-ended")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    allowed = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "sns.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": arn,
                "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
            }
        ],
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(allowed)})
    boto3.client("sns").subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    return "a queue is subscribed to the topic"


def _notices(deployment: Deployment) -> list[dict[str, Any]]:
    """What the topic said so far. Waits for the last one: it is told after the job is done."""
    sqs = boto3.client("sqs")
    url = sqs.get_queue_url(QueueName="deploy-local-ended")["QueueUrl"]
    heard: list[dict[str, Any]] = []
    until = time.monotonic() + _JOB_ENDS_WITHIN
    while time.monotonic() < until:
        batch = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        if not batch.get("Messages") and heard:
            break
        heard += [json.loads(each["Body"]) for each in batch.get("Messages", [])]
    return heard


def _sent(
    deployment: Deployment,
    event: dict[str, Any],
    meanwhile: Callable[[], None] = lambda: None,
    within: float = _JOB_ENDS_WITHIN,
) -> tuple[str, float]:
    """Sends a request and waits until its job is done. Gives the job and the seconds that it took."""
    job = job_id(event["tenant"], event["request_id"], "")
    boto3.client("sqs").send_message(
        QueueUrl=deployment.outputs["IntakeQueueUrl"],
        MessageBody=json.dumps(event),
        MessageGroupId=event["tenant"],
    )
    began = time.monotonic()
    meanwhile()
    dynamodb = boto3.client("dynamodb")
    head: dict[str, Any] = {}
    while (seconds := time.monotonic() - began) < within:
        key = {"pk": {"S": f"JOB#{job}"}, "sk": {"S": "JOB"}}
        head = dynamodb.get_item(TableName=deployment.outputs["TableName"], Key=key).get("Item", {})
        if head and head["status"]["S"] != "active":
            break
        time.sleep(0.2)
    status = head["status"]["S"] if head else "not started"
    where = head["stage"]["S"] if head else "the queue"
    _must(status == "done", f"{job} is {status} at {where} after {seconds:.0f} s")
    return job, seconds


def _must(holds: bool, why: str) -> None:
    if not holds:
        raise NotAsPromisedError(why)


class Steps:
    """Does one thing after the other, and keeps how long each took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.table = Table("step", "s", "found", box=None, pad_edge=False, header_style="bold")
        self.table.columns[1].justify = "right"

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Times what is done inside; what is found goes into the list."""
        began, found = time.monotonic(), list[str]()
        self._console.print(f"... {name}")
        try:
            yield found
        except BaseException as error:
            found[:] = [f"FAILED: {type(error).__name__}"]
            raise
        finally:
            self.table.add_row(name, f"{time.monotonic() - began:.1f}", *found)

    def do(self, name: str, step: Callable[[], str]) -> None:
        """Times a step that says itself what it found."""
        with self.step(name) as found:
            found.append(step())


def run(steps: Steps, place: Path, patient: bool) -> None:
    """All of it, in order."""
    program = ROOT / ".venv-ministack" / "bin" / "ministack"
    with ExitStack() as stack:
        model = stack.enter_context(serve_model())
        with steps.step("emulator starts") as found:
            aws = stack.enter_context(emulator(program, place))
            found.append(aws.environment["AWS_ENDPOINT_URL"])
        stack.enter_context(patch.dict(os.environ, aws.environment))
        stack.enter_context(patch("boto3.DEFAULT_SESSION", None))
        deployment = Deployment(aws, model, place)
        steps.do("clone", lambda: copy_tree(deployment))
        for command in commands("aws"):
            steps.do(command, lambda command=command: run_command(deployment, command))  # type: ignore[misc]
        steps.do("subscribe", lambda: listen(deployment))
        steps.do("first ticket", lambda: first_ticket(deployment))
        steps.do("command line", lambda: command_line(deployment))
        steps.do("worker killed", lambda: killed_worker(deployment, patient))
        doctor = ".venv/bin/stafette doctor --no-ticket"
        steps.do(doctor, lambda: _last_line(deployment.run(doctor)))
        change, delete = commands("aws later")
        steps.do(change, lambda: changed(deployment, change))
        steps.do(delete, lambda: deleted(deployment, delete))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """The command. Exit code 0: all came out as promised."""
    parser = argparse.ArgumentParser(prog="python -m local.deploy", description=__doc__)
    parser.add_argument(
        "--patient", action="store_true", help="leave the queue as deployed: six minutes more"
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs though all went well")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    steps = Steps(console)
    place = Path(tempfile.mkdtemp(prefix="stafette-deploy-"))
    began, why = time.monotonic(), None
    try:
        run(steps, place, given.patient)
    except (NotAsPromisedError, EmulatorError, subprocess.SubprocessError) as error:
        why = str(error)
    except KeyboardInterrupt:
        why = "interrupted"
    console.print(steps.table)
    console.print(f"\n{time.monotonic() - began:.0f} s in all")
    if why and (place / "emulator.log").exists():
        console.print(f"{tail(place / 'emulator.log')}\n")
    if why:
        console.print(f"{why}\nThe logs are in {place}")
        return 1
    if not given.keep:
        shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
