"""AWS on 127.0.0.1 for a deployment: ministack, which runs each function as a process of its own.

It runs with AUTH and TLS: what a function may do is what its role says, and plain HTTP is refused as the policies
say. Where it differs from AWS in a way that stands in the way of a deployment, `make_up_for_differences` does what
AWS does by itself; docs/deploy.md lists these and the rest.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import boto3
from botocore.config import Config

from local.template import load

ACCOUNT = "123456789012"
REGION = "us-east-1"
_STARTS_WITHIN = 60.0
_STOPS_WITHIN = 10.0
# Services with listeners of their own, which nothing here needs.
_OFF = {"IOT_MTLS_ENABLED": "0", "SFTP_ENABLED": "0"}


class EmulatorError(Exception):
    """The emulator does not do what it is there for."""


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running emulator.

    Attributes:
        pid: of its process, and of the process group of all that it starts.
        environment: what an AWS client needs to speak to it, and to nobody else.
        log: where it and its functions write.
    """

    pid: int
    environment: Mapping[str, str]
    log: Path

    def workers(self, function: str) -> list[int]:
        """Ids of the processes that run a function, by its name in AWS."""
        return [
            pid
            for pid, line in _group(self.pid)
            if "_worker.py" in line and f"-{function}-" in line
        ]


@contextmanager
def emulator(program: Path, place: Path) -> Iterator[Emulator]:
    """An emulator for as long as the context is open; of what it started nothing is left behind.

    Args:
        program: path of the command `ministack`.
        place: a folder for its files and its log.

    Raises:
        EmulatorError: it did not start.
    """
    scratch, log = place / "tmp", place / "emulator.log"
    scratch.mkdir(parents=True)
    port = _free_port()
    certificate = scratch / "ministack-tls" / "server.crt"
    environment = {
        "AWS_ENDPOINT_URL": f"https://127.0.0.1:{port}",
        "AWS_CA_BUNDLE": str(certificate),
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCOUNT,  # twelve digits are the root of that account
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1,localhost",
    }
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "NO_PROXY": environment["NO_PROXY"],
        "USE_SSL": "1",
        "AUTH": "true",
        **_OFF,
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [program], cwd=scratch, env=own, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait(process, port, certificate, log)
        yield Emulator(process.pid, environment, log)
    finally:
        _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int, certificate: Path, log: Path) -> None:
    until = time.monotonic() + _STARTS_WITHIN
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            trust = ssl.create_default_context(cafile=str(certificate))
            with urlopen(f"https://127.0.0.1:{port}/_ministack/health", timeout=5, context=trust):
                return
        except (OSError, URLError):
            time.sleep(0.1)
    raise EmulatorError(f"the emulator did not start; it needs `openssl`:\n{tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole process group, and looks that it is gone."""
    until = time.monotonic() + _STOPS_WITHIN
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        process.wait(_STOPS_WITHIN)
        while _group(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        if not _group(process.pid):
            break
        until += _STOPS_WITHIN
    if left := _group(process.pid):
        raise EmulatorError(f"processes are left: {left}")


def _group(group: int) -> list[tuple[int, str]]:
    """Id and command line of every process of a group that has not ended."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,pgid=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = []
    for line in listed.splitlines():
        pid, of, state, *rest = line.split(None, 3)
        if int(of) == group and not state.startswith("Z"):
            found.append((int(pid), " ".join(rest)))
    return found


def tail(log: Path, lines: int = 30) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def make_up_for_differences(stack: str, template: Path) -> None:
    """Does by hand what AWS does by itself and ministack 1.5.33 does not. Needs the emulator's environment."""
    _number_concurrency()
    _let_batches_be_sent(stack)
    _keep_promises_of_tables(stack, template)


def _number_concurrency() -> None:
    # `MaximumConcurrency: !Ref` arrives as text. AWS takes it for the number that it is; ministack keeps the text
    # and fails at each comparison: nothing is delivered.
    client = boto3.client("lambda")
    pages = client.get_paginator("list_event_source_mappings").paginate()
    for each in (mapping for page in pages for mapping in page["EventSourceMappings"]):
        if "MaximumConcurrency" in each.get("ScalingConfig", {}):
            most = int(each["ScalingConfig"]["MaximumConcurrency"])
            client.update_event_source_mapping(
                UUID=each["UUID"], ScalingConfig={"MaximumConcurrency": most}
            )


def _let_batches_be_sent(stack: str) -> None:
    # On AWS the permission sqs:SendMessage is the one for SendMessageBatch too; ministack asks for an action
    # sqs:SendMessageBatch, which AWS does not have. Each role gets it on the queues that it may send to.
    iam = boto3.client("iam", config=Config(retries={"mode": "standard"}))
    resources = boto3.client("cloudformation").get_paginator("list_stack_resources")
    for page in resources.paginate(StackName=stack):
        for each in page["StackResourceSummaries"]:
            if each["ResourceType"] != "AWS::IAM::Role":
                continue
            role = each["PhysicalResourceId"]
            for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
                policy = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
                sends = [
                    {**statement, "Action": "sqs:SendMessageBatch", "Sid": f"Batch{n}"}
                    for n, statement in enumerate(policy["Statement"])
                    if "sqs:SendMessage" in _listed(statement["Action"])
                ]
                if sends:
                    iam.put_role_policy(
                        RoleName=role,
                        PolicyName=f"{name}Batch",
                        PolicyDocument=json.dumps(
                            {"Version": policy["Version"], "Statement": sends}
                        ),
                    )


def _keep_promises_of_tables(stack: str, template: Path) -> None:
    # Of AWS::DynamoDB::Table, ministack leaves out expiry and point-in-time recovery, which its DynamoDB has. They
    # are set as the template says: a template without them has a table without them.
    cloudformation, client = boto3.client("cloudformation"), boto3.client("dynamodb")
    for table in load(template).tables.values():
        found = cloudformation.describe_stack_resource(
            StackName=stack, LogicalResourceId=table.logical_id
        )
        name = found["StackResourceDetail"]["PhysicalResourceId"]
        if expiry := table.properties.get("TimeToLiveSpecification"):
            client.update_time_to_live(TableName=name, TimeToLiveSpecification=expiry)
        if recovery := table.properties.get("PointInTimeRecoverySpecification"):
            client.update_continuous_backups(
                TableName=name, PointInTimeRecoverySpecification=recovery
            )


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
