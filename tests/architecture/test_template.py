"""template.yaml keeps the rules of template_rules.py; and each rule tells when what it guards is taken away."""

import ast
import re
import tomllib
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.template import parsed
from tests.architecture import template_rules as rules
from tests.architecture.template_rules import RULES, Json, Rule

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = parsed(ROOT / "template.yaml")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_the_rule(rule: Rule) -> None:
    assert rule(TEMPLATE) == []


# --- broken templates ----------------------------------------------------------------------------------------

Broken = Callable[[Json], Any]


def of(template: Json, key: str) -> Json:
    """The properties of a resource."""
    properties: Json = template["Resources"][key]["Properties"]
    return properties


def event(template: Json, key: str) -> Json:
    """The properties of a function's queue."""
    properties: Json = of(template, key)["Events"]["Messages"]["Properties"]
    return properties


def allow(template: Json, role: str, **statement: Any) -> None:
    document = of(template, role)["Policies"][0]["PolicyDocument"]
    document["Statement"].append({"Effect": "Allow", **statement})


def ref(key: str, attribute: str = "Arn") -> Json:
    return {"Fn::GetAtt": [key, attribute]}


def cycle_by_self(t: Json) -> None:
    """REQ-SAM-02: the smallest input."""
    of(t, "Route")["Environment"]["Variables"]["SELF_ARN"] = ref("Route")


def cycle_by_role(t: Json) -> None:
    allow(t, "RouteRole", Action="lambda:InvokeFunction", Resource=ref("Route"))


def cycle_by_bucket_event(t: Json) -> None:
    """REQ-SAM-02: a bucket that calls a function which is told of the bucket."""
    of(t, "Bucket")["NotificationConfiguration"] = {
        "LambdaConfigurations": [{"Event": "s3:ObjectCreated:*", "Function": ref("Route")}]
    }


def cycle_by_sub_and_depends_on(t: Json) -> None:
    of(t, "Logs")["LogGroupName"] = {"Fn::Sub": "${Ended.TopicName}-${AWS::StackName}"}
    t["Resources"]["Ended"]["DependsOn"] = "Dashboard"


def redrive_policy(t: Json, key: str, **changes: Any) -> None:
    of(t, key)["RedrivePolicy"].update(changes)


def fifo(t: Json) -> None:
    of(t, "DeadQueue")["FifoQueue"] = True


def shared_role(t: Json) -> None:
    of(t, "Route")["Role"] = ref("IntakeRole")


def queue_of_another(t: Json) -> None:
    of(t, "Notify")["Environment"]["Variables"]["QUEUE_ACT"] = {"Ref": "ActQueue"}


def alarm_on_another_service(t: Json) -> None:
    of(t, "DeadRecords")["Dimensions"] = [{"Name": "service", "Value": "stafette"}]


def nested(t: Json) -> None:
    t["Resources"]["More"] = {
        "Type": "AWS::CloudFormation::Stack",
        "Properties": {"TemplateURL": "https://example.com/more.yaml"},
    }


def one_more_queue(t: Json) -> None:
    t["Resources"]["OneMoreQueue"] = deepcopy(t["Resources"]["ActQueue"])


def dead_letters_elsewhere(t: Json) -> None:
    redrive_policy(t, "ActQueue", deadLetterTargetArn=ref("TerminalQueue"))


def policies_without_tls(kind: str) -> Broken:
    return lambda t: of(t, kind)["PolicyDocument"]["Statement"].clear()


BROKEN: list[tuple[Rule, str, Broken]] = [
    (rules.role_of_its_own, "shared", shared_role),
    (
        rules.role_of_its_own,
        "managed_by_aws",
        lambda t: of(t, "ActRole").update(
            ManagedPolicyArns=[
                "arn:aws:iam::aws:policy/service-role/AWSLambdaSQSQueueExecutionRole"
            ]
        ),
    ),
    (
        rules.named_resources,
        "everything",
        lambda t: allow(t, "ActRole", Action="sqs:SendMessage", Resource="*"),
    ),
    (
        rules.named_resources,
        "all_queues",
        lambda t: allow(
            t,
            "ActRole",
            Action="sqs:SendMessage",
            Resource={"Fn::Sub": "arn:aws:sqs:${AWS::Region}:${AWS::AccountId}:*"},
        ),
    ),
    (
        rules.named_resources,
        "whole_bucket",
        lambda t: allow(
            t, "ActRole", Action="s3:GetObject", Resource={"Fn::Sub": "${Bucket.Arn}/*"}
        ),
    ),
    (
        rules.named_resources,
        "all_actions",
        lambda t: allow(t, "ActRole", Action="dynamodb:*", Resource=ref("Table")),
    ),
    (rules.settings_that_are_used, "queue_of_another", queue_of_another),
    (
        rules.settings_that_are_used,
        "own_queue_missing",
        lambda t: of(t, "Act")["Environment"]["Variables"].pop("QUEUE_ACT"),
    ),
    (
        rules.settings_that_are_used,
        "topic",
        lambda t: of(t, "Act")["Environment"]["Variables"].update(TOPIC={"Ref": "Ended"}),
    ),
    (
        rules.settings_that_are_used,
        "key",
        lambda t: of(t, "Draft")["Environment"]["Variables"].pop("MODEL_KEY_SECRET"),
    ),
    (
        rules.partial_responses,
        "missing",
        lambda t: event(t, "Classify").pop("FunctionResponseTypes"),
    ),
    (rules.redrives, "missing", lambda t: of(t, "ActQueue").pop("RedrivePolicy")),
    (rules.redrives, "other_kind", fifo),
    (rules.redrives, "too_few", lambda t: redrive_policy(t, "ActQueue", maxReceiveCount=4)),
    (
        rules.redrives,
        "kept_as_long",
        lambda t: of(t, "ActQueue").update(MessageRetentionPeriod=864_000),
    ),
    (rules.one_dead_letter_queue, "elsewhere", dead_letters_elsewhere),
    (rules.one_dead_letter_queue, "no_terminal", lambda t: of(t, "DeadQueue").pop("RedrivePolicy")),
    (
        rules.one_dead_letter_queue,
        "open_to_others",
        lambda t: of(t, "ActQueue").pop("RedriveAllowPolicy"),
    ),
    (rules.visibility, "short", lambda t: of(t, "ActQueue").update(VisibilityTimeout=359)),
    (rules.visibility, "default", lambda t: of(t, "DeadQueue").pop("VisibilityTimeout")),
    (
        rules.visibility,
        "window",
        lambda t: event(t, "Act").update(MaximumBatchingWindowInSeconds=1),
    ),
    (rules.visibility, "longer_function", lambda t: of(t, "Draft").update(Timeout=91)),
    (
        rules.concurrency,
        "of_a_scale",
        lambda t: t["Mappings"]["Concurrency"]["small"].update(Stage=1),
    ),
    (rules.concurrency, "missing", lambda t: event(t, "Act").pop("ScalingConfig")),
    (
        rules.concurrency,
        "reserved",
        lambda t: of(t, "Sweep").update(ReservedConcurrentExecutions=1),
    ),
    (rules.chains, "missing", lambda t: of(t, "Classify").pop("RecursiveLoop")),
    (rules.chains, "bury", lambda t: of(t, "Bury").pop("RecursiveLoop")),
    (rules.chains, "not_needed", lambda t: of(t, "Intake").update(RecursiveLoop="Allow")),
    *(
        (rules.encrypted, key, lambda t, key=key, name=name: of(t, key).pop(name))
        for key, name in (
            ("TerminalQueue", "SqsManagedSseEnabled"),
            ("Ended", "KmsMasterKeyId"),
            ("Table", "SSESpecification"),
            ("Bucket", "BucketEncryption"),
        )
    ),
    *(
        (rules.tls_only, key, policies_without_tls(key))
        for key in ("QueuePolicy", "EndedPolicy", "BucketPolicy")
    ),
    (rules.tls_only, "a_queue_forgotten", lambda t: of(t, "QueuePolicy")["Queues"].pop()),
    (
        rules.private_bucket,
        "public",
        lambda t: of(t, "Bucket")["PublicAccessBlockConfiguration"].pop("BlockPublicPolicy"),
    ),
    (
        rules.artifacts_outlive_items,
        "for_ever",
        lambda t: of(t, "Bucket").pop("LifecycleConfiguration"),
    ),
    (
        rules.artifacts_outlive_items,
        "too_short",
        lambda t: t["Mappings"]["Artifacts"]["Days"].update({"90": 90}),
    ),
    *(
        (
            rules.kept_data,
            f"{key}_{name}",
            lambda t, key=key, name=name: t["Resources"][key].pop(name),
        )
        for key in ("Table", "Bucket")
        for name in ("DeletionPolicy", "UpdateReplacePolicy")
    ),
    *(
        (rules.kept_data, name, lambda t, name=name: of(t, "Table").pop(name))
        for name in (
            "DeletionProtectionEnabled",
            "PointInTimeRecoverySpecification",
            "TimeToLiveSpecification",
        )
    ),
    (rules.kept_data, "named", lambda t: of(t, "Table").update(TableName="jobs")),
    (rules.logs_that_end, "for_ever", lambda t: of(t, "Logs").pop("RetentionInDays")),
    (
        rules.logs_that_end,
        "own_group",
        lambda t: t["Globals"]["Function"].pop("LoggingConfig"),
    ),
    *(
        (rules.alarms, key, lambda t, key=key: t["Resources"].pop(key))
        for key in (
            "DeadRecords",
            "StuckJobs",
            "SweepErrors",
            "TerminalMessages",
            "DraftAge",
            "DeadAge",
        )
    ),
    (rules.alarms, "silent", lambda t: of(t, "DraftAge").pop("AlarmActions")),
    (rules.alarms, "of_another_stack", alarm_on_another_service),
    (
        rules.alarms,
        "another_name",
        lambda t: t["Globals"]["Function"]["Environment"]["Variables"].update(
            POWERTOOLS_SERVICE_NAME="stafette"
        ),
    ),
    (rules.dashboard, "missing", lambda t: t["Resources"].pop("Dashboard")),
    (rules.dashboard, "a_queue_forgotten", one_more_queue),
    (rules.outputs, "a_queue_forgotten", lambda t: t["Outputs"].pop("DraftQueueUrl")),
    (rules.outputs, "table", lambda t: t["Outputs"].pop("TableName")),
    (rules.one_target, "no_processor", lambda t: t["Globals"]["Function"].pop("Architectures")),
    (rules.one_target, "other_runtime", lambda t: of(t, "Act").update(Runtime="python3.12")),
    (rules.one_target, "other_processor", lambda t: of(t, "Act").update(Architectures=["x86_64"])),
    (
        rules.one_target,
        "layer_silent",
        lambda t: of(t, "Library").pop("CompatibleArchitectures"),
    ),
    (rules.no_cycle, "self", cycle_by_self),
    (rules.no_cycle, "role", cycle_by_role),
    (rules.no_cycle, "bucket_event", cycle_by_bucket_event),
    (rules.no_cycle, "sub_and_depends_on", cycle_by_sub_and_depends_on),
    (rules.nothing_hidden, "nested", nested),
]


@pytest.mark.parametrize(
    ("rule", "broken"),
    [(rule, broken) for rule, _, broken in BROKEN],
    ids=[f"{rule.__name__}-{name}" for rule, name, _ in BROKEN],
)
def test_a_broken_template_is_told_of(rule: Rule, broken: Broken) -> None:
    template = deepcopy(TEMPLATE)
    broken(template)
    assert rule(template) != []


def test_every_rule_has_been_seen_to_tell() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


# --- the same failures, by their names -------------------------------------------------------------------------


def test_req_sam_01_every_queue_event_reports_partial_failures_and_redrives_to_its_kind() -> None:
    """REQ-SAM-01."""
    assert rules.partial_responses(TEMPLATE) + rules.redrives(TEMPLATE) == []
    assert rules.nothing_hidden(TEMPLATE) == []
    silent = deepcopy(TEMPLATE)
    event(silent, "Draft").pop("FunctionResponseTypes")
    [told] = rules.partial_responses(silent)
    assert told.startswith("DraftMessages ")


def test_req_sam_02_a_circle_is_found_in_what_sam_makes_of_the_template_and_printed() -> None:
    """REQ-SAM-02: the role and the mapping that SAM generates are nodes of the graph."""
    assert rules.no_cycle(TEMPLATE) == []
    template = deepcopy(TEMPLATE)
    cycle_by_self(template)
    assert rules.no_cycle(template) == ["Route -> Route"]
    template = deepcopy(TEMPLATE)
    # Sweep's schedule has a role that SAM makes, which names Sweep.
    of(template, "Sweep")["Environment"]["Variables"]["CALLED_BY"] = ref("SweepEveryMinuteRole")
    [told] = rules.no_cycle(template)
    assert told == "Sweep -> SweepEveryMinuteRole -> Sweep"


# --- what lies beside the template ---------------------------------------------------------------------------


@cache
def environment() -> set[str]:
    """Every variable that any function is given, with either provider."""
    given = [
        rules.functions(rules.resolved(TEMPLATE, {"ModelProvider": name}))
        for name in ("anthropic", "bedrock")
    ]
    return {
        name
        for found in given
        for each in found.values()
        for name in each["Environment"]["Variables"]
    }


# What settings.py reads and no deployed function is given, and why.
NOT_DEPLOYED = {
    "ANTHROPIC_API_KEY": "a developer's own machine; deployed functions read a secret",
    "ANTHROPIC_BASE_URL": "a developer's own machine; deployed functions have MODEL_BASE_URL",
}


def test_every_setting_that_the_library_reads_can_be_set_in_the_template() -> None:
    source = (ROOT / "shared/stafette/settings.py").read_text()
    read = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and re.fullmatch(r"[A-Z][A-Z_]{3,}", str(node.value))
    } - {"QUEUE_"}
    assert len(read) > 8
    given = {name for name in environment() if not name.startswith(("QUEUE_", "POWERTOOLS_"))}
    assert read - set(NOT_DEPLOYED) == given


@pytest.mark.parametrize("name", ["default", "staging", "prod"])
def test_samconfig_names_only_parameters_that_the_template_has(name: str) -> None:
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())[name]
    deploy = config["deploy"]["parameters"]
    overrides = dict(pair.split("=", 1) for pair in deploy["parameter_overrides"])
    for key, value in overrides.items():
        allowed = TEMPLATE["Parameters"][key].get("AllowedValues", [value])
        assert value in map(str, allowed), key
    assert deploy["capabilities"] == "CAPABILITY_IAM"
    assert config["global"]["parameters"]["stack_name"].startswith("stafette-")
    assert {tag.split("=")[0] for tag in deploy["tags"].split()} == {"project", "stage"}


def test_the_stages_of_samconfig_are_stacks_of_their_own_and_those_that_matter_are_protected() -> (
    None
):
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())
    stages = {name: each for name, each in config.items() if name != "version"}
    stacks = [each["global"]["parameters"]["stack_name"] for each in stages.values()]
    assert len(set(stacks)) == len(stacks) == 3
    for name in ("staging", "prod"):
        deploy = stages[name]["deploy"]["parameters"]
        assert "DeletionProtection=true" in deploy["parameter_overrides"]
        assert deploy["confirm_changeset"] is True


def test_the_layer_is_built_by_default_for_what_the_template_asks_for_by_default() -> None:
    defaults = dict(re.findall(r"^(\w+) \?= (\S+)$", (ROOT / "shared/Makefile").read_text(), re.M))
    parameters = TEMPLATE["Parameters"]
    assert defaults["RUNTIME"] == parameters["Runtime"]["Default"]
    assert defaults["ARCHITECTURE"] == parameters["Architecture"]["Default"]


def test_the_layer_holds_the_data_of_every_service_that_is_called() -> None:
    """botocore is shipped without the rest: a client of another service would not start."""
    makefile = (ROOT / "shared/Makefile").read_text()
    shipped = set(re.findall(r"^SERVICES := (.*)$", makefile, re.M)[0].split())
    called = {"secretsmanager"}  # by powertools, for the key of the model
    for path in [*ROOT.glob("shared/**/*.py"), *ROOT.glob("functions/**/*.py")]:
        called |= set(
            re.findall(r"""\.(?:client|resource)\(\s*["']([\w-]+)["']""", path.read_text())
        )
    assert shipped == called


def test_the_template_is_plain_yaml() -> None:
    """CloudFormation knows no anchors."""
    text = (ROOT / "template.yaml").read_text()
    assert not [
        token for token in yaml.scan(text) if isinstance(token, yaml.AnchorToken | yaml.AliasToken)
    ]
