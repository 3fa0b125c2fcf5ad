"""What each function is allowed is what it does: policies of the template against calls that were really made.

The flows below make every function do all that its code can: work, wait, fail, return a message, send again what was
not sent, carry what is too large for a message, keep what nobody could take. A call that no policy allows fails, and
so does a permission that no call needed.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

import pytest
from aws_lambda_powertools.utilities import parameters
from botocore.exceptions import ClientError

from local.calls import Call, Phase
from local.machine import TEMPLATE, Machine
from local.model import serve_model
from local.template import parsed, resolved
from stafette.agent.models import MODELS
from stafette.aws.effects import GRACE
from stafette.core.errors import BlockedError
from stafette.core.form import Form
from stafette.core.job import FIRST_LOOK
from tests.architecture import template_rules as rules
from tests.support import URGENT, Json, Stack, job_of, script_agent, ticket

pytestmark = pytest.mark.slow

Used = set[tuple[str, str, str]]  # function, action, resource

SECRET = "stafette/anthropic"
STAGES = ("route", "classify", "enrich", "enrich_record", "draft", "act")
QUEUED = ("intake", "answer", *STAGES, "notify", "bury")
NO_ANSWER = json.dumps({"job_id": "0" * 26, "form": "classify.sure", "answer": {}})
DOCUMENT = parsed(TEMPLATE)

# --- from a call to what IAM calls it ------------------------------------------------------------------------

# Operations that IAM knows under another name. One that is in neither table is an error, never a guess.
_RENAMED = {
    ("sqs", "SendMessageBatch"): "sqs:SendMessage",
    ("secretsmanager", "GetSecretValue"): "secretsmanager:GetSecretValue",
}
_SAME = {
    "dynamodb": {"GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query", "Scan"},
    "sqs": {"SendMessage", "ChangeMessageVisibility", "GetQueueAttributes"},
    "s3": {"GetObject", "PutObject"},
    "sns": {"Publish"},
}


def action_of(call: Call) -> str:
    """The IAM action of an API call."""
    if call.operation in _SAME.get(call.service, ()):
        return f"{call.service}:{call.operation}"
    return _RENAMED[call.service, call.operation]


def resource_of(call: Call) -> str:
    """The ARN that a call is about."""
    given, region = call.parameters, "us-east-1:123456789012"
    match call.service:
        case "dynamodb":
            index = f"/index/{given['IndexName']}" if "IndexName" in given else ""
            return f"arn:aws:dynamodb:{region}:table/{given['TableName']}{index}"
        case "sqs":
            return f"arn:aws:sqs:{region}:{given['QueueUrl'].rsplit('/', 1)[-1]}"
        case "s3":
            return f"arn:aws:s3:::{given['Bucket']}/{given['Key']}"
        case "sns":
            return str(given["TopicArn"])
        case "secretsmanager":
            return str(call.response["ARN"])
    raise KeyError(call.service)


def used(machine: Machine) -> Used:
    """What the functions did. What a person did in their place is no function's doing."""
    invocations = {outcome.request_id for outcome in machine.outcomes}
    return {
        (machine.function(call.function).logical_id, action_of(call), resource_of(call))
        for call in machine.calls
        if call.request_id in invocations
    }


# --- permissions that no call of a function's own code shows ----------------------------------------------------


def of_the_service(function: str, resources: dict[str, Json]) -> dict[str, str]:
    """Actions that Lambda itself takes in the name of a function's role, with the resource: why is beside each."""
    taken = {
        # what the function prints
        "logs:CreateLogStream": "Logs",
        "logs:PutLogEvents": "Logs",
    }
    for mapping in rules.mappings(resources).values():
        if rules.key_of(mapping["FunctionName"]) == function:
            # the event source mapping
            queue = rules.key_of(mapping["EventSourceArn"])
            for action in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes"):
                taken[f"sqs:{action}"] = queue
    return taken


def faults(document: Json, made: Used) -> list[str]:
    """Calls without a permission, and permissions without a call."""
    resources, wrong = resolved(document), []
    for function in rules.functions(resources):
        service = of_the_service(function, resources)
        allowed = rules.allowed(resources, function)
        own = {(action, where) for who, action, where in made if who == function}
        for action, where in sorted(own):
            if not any(action == a and fnmatchcase(where, r) for a, r in allowed):
                wrong.append(f"{function} may not {action} on {where}")
        for action, key in service.items():
            if not any(action == a and rules.key_of(r) == key for a, r in allowed):
                wrong.append(f"{function}: Lambda may not {action} on {key}")
        for action, pattern in sorted(allowed):
            needed = any(action == a and fnmatchcase(r, pattern) for a, r in own)
            if not needed and rules.key_of(pattern) != service.get(action):
                wrong.append(f"{function} never does {action} on {pattern}")
    return wrong


# --- the flows -----------------------------------------------------------------------------------------------


@contextmanager
def stopping(
    stack: Stack, where: Callable[[Call], bool], code: str | BlockedError, times: int = 1
) -> Iterator[None]:
    """AWS answers the first calls that `where` is true of with an error; or there the work asks a person."""
    met: list[Call] = []

    def observe(phase: Phase, call: Call) -> None:
        if phase == "before" and len(met) < times and where(call):
            met.append(call)
            if isinstance(code, BlockedError):
                raise code
            raise ClientError({"Error": {"Code": code, "Message": ""}}, call.operation)

    remove = stack.machine.on_call(observe)
    yield
    remove()
    assert met, "the call to stop was never made"


def stores_result(function: str) -> Callable[[Call], bool]:
    """The call by which a function keeps what its work came to."""

    def where(call: Call) -> bool:
        said = str(call.parameters)
        part = call.operation == "UpdateItem" and "'began'" in said and "PART#" in said
        return call.function == function and ("RESULT#" in said or part)

    return where


def run_to(stack: Stack, function: str) -> None:
    queue = stack.machine.queue(function).logical_id
    stack.run_until(lambda: queue in stack.machine.backlog())


def put_aside(stack: Stack, body: str, folder: str) -> str:
    """Puts a body where people put what is too large for a message. Returns the reference that is sent instead."""
    data = body.encode()
    digest = sha256(data).hexdigest()
    key = f"artifacts/{folder}/{digest}"
    stack.machine.client("s3").put_object(Bucket=stack.machine.bucket, Key=key, Body=data)
    return json.dumps({"kind": "ref", "key": key, "bytes": len(data), "sha256": digest})


def ask_large(stack: Stack, request_id: str) -> str:
    """Neither the request nor what travels between its stages fits into a message; nor does a part, or a result."""
    text = "é" * 90_000
    records = [{"kind": "order", "id": f"o-{n}", "text": text} for n in range(3)]
    body = ticket(request_id, records, text=text)
    stack.send("intake", put_aside(stack, json.dumps(body), "inbox"))
    return job_of(request_id)


def run_as_asked(stack: Stack) -> None:
    for _ in range(2):  # asked for twice
        stack.run("plain", 3, text="My card was charged." + URGENT)
    ask_large(stack, "large")
    stack.send("intake", {"input": {"text": "My card is lost."}})  # for the router
    stack.machine.run_until_quiet()
    with stack.sending_twice():
        stack.run("twice", 2)


def be_returned(stack: Stack) -> None:
    """Each function is once too busy to say what a message is about."""
    for function in QUEUED:
        if function == "bury":
            stack.send("bury", "no message")
        elif function == "answer":
            stack.send("answer", NO_ANSWER)
        else:
            stack.ask(f"returned-{function}", 1)
        with stopping(stack, lambda call, f=function: call.function == f, "ThrottlingException"):  # type: ignore[misc]
            stack.machine.run_until_quiet()


def wait_and_fail(stack: Stack) -> None:
    """The work of each stage once comes to nothing for a while, and once for ever."""
    for function in STAGES:
        # A busy table is asked again in place, so often and no oftener.
        for code, times in (("ThrottlingException", 6), ("EntityTooLarge", 1)):
            stack.ask(f"{code}-{function}", 1)
            with stopping(stack, stores_result(function), code, times):
                stack.machine.run_until_quiet()


def die_before_telling(stack: Stack) -> None:
    """Each stage once dies between its advance and what follows from it."""
    for function in STAGES:
        stack.ask(f"untold-{function}", 1)
        with stack.dying_at(
            lambda call, f=function: call.function == f and call.service == "sqs",  # type: ignore[misc]
            "before",
        ):
            stack.machine.run_until_quiet()


def use_up_the_tries(stack: Stack) -> None:
    """The work of each stage is broken until its job is given up."""
    for function in STAGES:
        job_id = stack.ask(f"broken-{function}", 1)
        run_to(stack, function)
        if function != "enrich_record":
            stack.edit((f"JOB#{job_id}", "JOB"), failures=5, attempt=5)
        stack.machine.run_until_quiet()


def lose_messages(stack: Stack) -> None:
    """The message to each stage is once lost, and sweep makes up for it."""
    for function in (*STAGES, "large"):
        large = function == "large"
        job_id = ask_large(stack, "lost") if large else stack.ask(f"lost-{function}", 1)
        at = "enrich_record" if large else function
        run_to(stack, at)
        assert stack.take_away(at)
        stack.machine.run_until_quiet()
        stack.machine.clock.advance_to(stack.machine.clock.now() + FIRST_LOOK)
        assert stack.machine.invoke("sweep", {})["pushed"] == 1
        stack.machine.run_until_quiet()
        assert stack.head(job_id)["status"] == "done"
    job_id = stack.ask("late", 0)
    run_to(stack, "act")
    stack.take_away("act")
    stack.machine.clock.advance_to(float(stack.head(job_id)["deadline"]))
    stack.machine.invoke("sweep", {})
    stack.machine.run_until_quiet()


def bury_messages(stack: Stack) -> None:
    """The message to each stage once comes to the dead-letter queue: bounced, never begun, or long done."""
    for function in STAGES:
        for bounced in (True, False):
            job_id = stack.ask(f"buried-{function}-{bounced}", 1)
            run_to(stack, function)
            bodies = stack.take_away(function)
            if bounced:
                stack.edit((f"JOB#{job_id}", "JOB"), failures=2, attempt=3)
            for body in bodies:
                stack.send("bury", body)
            stack.machine.run_until_quiet()
    stack.ask("buried-split", 1)
    run_to(stack, "enrich")
    [split] = stack.take_away("enrich")
    stack.send("enrich", split)
    run_to(stack, "enrich_record")
    stack.send("bury", split)
    stack.machine.run_until_quiet()


def be_in_doubt(stack: Stack) -> None:
    """act dies between an effect and its record, and looks it up."""
    stack.ask("doubt", 0)
    with stack.dying_at(
        lambda call: call.function == "act" and call.operation == "PutObject", "after"
    ):
        stack.machine.run_until_quiet()
    stack.machine.clock.advance(GRACE)
    stack.machine.run_until_quiet()


def wait_for_people(stack: Stack) -> None:
    """The work of each stage once waits for a person; so does a job whose parts do not fit into messages."""
    for function in (*STAGES, "large"):
        large = function == "large"
        at, form = ("enrich_record", "job.sure") if large else (function, f"{function}.sure")
        if function == "enrich_record":
            form = "enrich:00000.sure"
        request, urgent = f"person-{function}", "My card was charged." + URGENT
        job_id = ask_large(stack, request) if large else stack.ask(request, 1, text=urgent)
        asks = BlockedError(Form("sure", "?", {"type": "object"}, {}, "job" if large else "work"))
        with stopping(stack, stores_result(at), asks):
            stack.machine.run_until_quiet()
        answer = json.dumps({"job_id": job_id, "form": form, "answer": {}})
        stack.send("answer", put_aside(stack, answer, "inbox"))
        stack.machine.run_until_quiet()
        assert stack.head(job_id)["status"] == "done"


def stand_still(stack: Stack) -> None:
    """A push does not help: sweep looks whether a person is asked before it alarms anybody."""
    job_id = stack.ask("still", 0)
    for _ in range(2):
        run_to(stack, "act")
        stack.take_away("act")
        stack.machine.clock.advance_to(float(stack.head(job_id)["due"]))
        assert stack.machine.invoke("sweep", {})["pushed"] == 1
    stack.machine.run_until_quiet()


def take_what_is_not_theirs(stack: Stack) -> None:
    """Each queue is sent what its function does not take: large, and as a reference to something large."""
    for function in QUEUED:
        stack.send(function, "{" + "é" * 100_000)
        wrong = json.dumps({"v": 1, "kind": "nonsense", "text": "é" * 40_000})
        folder = "inbox" if function in ("intake", "answer") else "stranger"
        stack.send(function, put_aside(stack, wrong + " " * len(function), folder))
    stack.machine.run_until_quiet()


def forget_the_key(phase: Phase, call: Call) -> None:
    """On Lambda each function is a process with a cache of its own: who is about to ask a model reads the secret."""
    if phase == "before" and call.operation == "PutItem" and "CALL#" in str(call.parameters):
        parameters.clear_caches()


@pytest.fixture(scope="module")
def made() -> Iterator[Used]:
    with pytest.MonkeyPatch.context() as patch, serve_model() as offline:
        # No key is handed over: the functions that ask a model read the secret, each of them.
        access = {"MODEL_BASE_URL": offline.base_url}
        with Machine(model_access=access) as machine:
            machine.client("secretsmanager").create_secret(Name=SECRET, SecretString="offline")
            stack = Stack(machine, offline)
            machine.on_call(forget_the_key)
            run_as_asked(stack)
            script_agent(patch)  # the rest is not about the model
            be_returned(stack)
            wait_and_fail(stack)
            die_before_telling(stack)
            use_up_the_tries(stack)
            lose_messages(stack)
            bury_messages(stack)
            be_in_doubt(stack)
            wait_for_people(stack)
            stand_still(stack)
            take_what_is_not_theirs(stack)
            yield used(machine)
    parameters.clear_caches()


def test_every_function_is_allowed_what_it_does_and_nothing_else(made: Used) -> None:
    assert faults(DOCUMENT, made) == []


def statements(document: Json, role: str) -> list[Any]:
    properties = document["Resources"][role]["Properties"]
    policies = properties["Policies"][0]["PolicyDocument"] if "Policies" in properties else None
    found: list[Any] = (policies or properties["PolicyDocument"])["Statement"]
    return found


def test_a_permission_that_is_taken_away_is_missed(made: Used) -> None:
    """Each statement of each role in turn."""
    roles = [key for key in DOCUMENT["Resources"] if key.endswith("Role")]
    for role in (*roles, "ModelAccess"):
        for n in range(len(statements(DOCUMENT, role))):
            document = deepcopy(DOCUMENT)
            gone = statements(document, role).pop(n)
            assert any(" may not " in fault for fault in faults(document, made)), (role, gone)


@pytest.mark.parametrize(
    ("role", "action", "resource"),
    [
        ("ActRole", "dynamodb:DeleteItem", {"Fn::GetAtt": ["Table", "Arn"]}),
        ("NotifyRole", "sqs:SendMessage", {"Fn::GetAtt": ["ActQueue", "Arn"]}),
        ("BuryRole", "dynamodb:Query", {"Fn::Sub": "${Table.Arn}/index/list"}),
        ("RouteRole", "s3:GetObject", {"Fn::Sub": "${Bucket.Arn}/outbox/*"}),
        ("EnrichRole", "sqs:GetQueueAttributes", {"Fn::GetAtt": ["DraftQueue", "Arn"]}),
    ],
)
def test_a_permission_that_nobody_needs_is_told_of(
    made: Used, role: str, action: str, resource: Json
) -> None:
    document = deepcopy(DOCUMENT)
    statements(document, role).append({"Effect": "Allow", "Action": action, "Resource": resource})
    [told] = faults(document, made)
    assert told.startswith(f"{role.removesuffix('Role')} never does {action} on ")


@pytest.mark.parametrize("profile", DOCUMENT["Parameters"]["BedrockProfile"]["AllowedValues"])
def test_with_bedrock_a_model_may_be_called_and_the_key_not_be_read(profile: str) -> None:
    """No moto answers for Bedrock: the ids that the library calls are held against the policy instead."""
    given = {"ModelProvider": "bedrock", "BedrockProfile": profile}
    resources = resolved(DOCUMENT, given)
    for function in ("Route", "Classify", "EnrichRecord", "Draft"):
        allowed = rules.allowed(resources, function)
        assert not {action for action, _ in allowed if action.startswith("secretsmanager")}
        whole, streamed = (
            [where for action, where in allowed if action == f"bedrock:{name}"]
            for name in ("InvokeModel", "InvokeModelWithResponseStream")
        )
        assert set(whole) == set(streamed)
        patterns = whole
        for name in (known.bedrock for known in MODELS.values()):
            for where in (
                f"us-east-1:123456789012:inference-profile/{profile}.{name}",
                f"eu-west-1::foundation-model/{name}",
                f"::foundation-model/{name}",
            ):
                assert any(fnmatchcase(f"arn:aws:bedrock:{where}", p) for p in patterns), where
