"""What a template of this pattern must say: rules over what CloudFormation would get. Each returns its faults as lines.

A rule takes the parsed template, so that a test can break one and see that the rule tells.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from local.template import resolved, translated
from stafette.core.job import LONGEST_LIFE

Json = dict[str, Any]
Rule = Callable[[Json], list[str]]

_PLACEHOLDER = re.compile(r"\$\{([^!}.]+)[^}]*\}")
# Where a name may be open, and why.
OPEN = (
    # objects under a prefix of a bucket: there is one for each job
    r"arn:aws:s3:::[^*?/]+/[^*?]+/\*",
    # the service ends the name of a secret with six characters of its own
    r"arn:aws:secretsmanager:[^*?]+:secret:[^*?]+-\?{6}",
    # versions of a model; and an inference profile routes to regions of its own choice
    r"arn:aws:bedrock:\*::foundation-model/anthropic\.claude-\*",
    r"arn:aws:bedrock:[^*?]+:inference-profile/[^*?]+\.anthropic\.claude-\*",
)
# What a variable of the environment stands for: the action that a function has to be allowed to make sense of it.
NEEDS = {
    "TABLE": "dynamodb:*",
    "RETENTION_DAYS": "dynamodb:*",
    "BUCKET": "s3:*",
    "TOPIC": "sns:Publish",
    "MODEL_KEY_SECRET": "secretsmanager:GetSecretValue",
    "MODEL_PROVIDER": "secretsmanager:GetSecretValue",
    "MODEL_BASE_URL": "secretsmanager:GetSecretValue",
    "MODEL_LONGEST_WAIT": "secretsmanager:GetSecretValue",
    "MODEL_CONCURRENT": "secretsmanager:GetSecretValue",
    "MODEL_REQUESTS_PER_MINUTE": "secretsmanager:GetSecretValue",
    "MODEL_TOKENS_PER_MINUTE": "secretsmanager:GetSecretValue",
    "JOB_BUDGET_USD": "secretsmanager:GetSecretValue",
    "JOB_BUDGET_TOKENS": "secretsmanager:GetSecretValue",
    "TENANT_BUDGET_USD": "secretsmanager:GetSecretValue",
    "TENANT_BUDGET_TOKENS": "secretsmanager:GetSecretValue",
}


# --- reading -----------------------------------------------------------------------------------------------


def listed(value: Any) -> list[Any]:
    """IAM takes one or a list."""
    return value if isinstance(value, list) else [value]


def of_type(resources: Mapping[str, Json], kind: str) -> dict[str, Json]:
    """The properties of the resources of a type, by logical id."""
    return {key: each["Properties"] for key, each in resources.items() if each["Type"] == kind}


def queues(resources: Mapping[str, Json]) -> dict[str, Json]:
    return of_type(resources, "AWS::SQS::Queue")


def mappings(resources: Mapping[str, Json]) -> dict[str, Json]:
    return of_type(resources, "AWS::Lambda::EventSourceMapping")


def key_of(arn_or_name: str) -> str:
    """The logical id in a name that the machine made."""
    return arn_or_name.rsplit("stafette-local-", 1)[-1].removesuffix(".fifo")


def statements(resources: Mapping[str, Json], role: str) -> Iterator[tuple[str, str]]:
    """Each (action, resource) that a role allows, its managed policies of this template included."""
    properties = resources[role]["Properties"]
    documents = [each["PolicyDocument"] for each in properties.get("Policies", [])]
    for attached in properties.get("ManagedPolicyArns", []):
        policy = resources.get(key_of(attached))
        if policy is not None:
            documents.append(policy["Properties"]["PolicyDocument"])
    for document in documents:
        for statement in document["Statement"]:
            for action in listed(statement["Action"]):
                for resource in listed(statement["Resource"]):
                    yield action, resource


def allowed(resources: Mapping[str, Json], function: str) -> set[tuple[str, str]]:
    """Each (action, resource) that a function is allowed."""
    role = key_of(resources[function]["Properties"]["Role"])
    return set(statements(resources, role))


def functions(resources: Mapping[str, Json]) -> dict[str, Json]:
    return of_type(resources, "AWS::Lambda::Function")


# --- roles and settings ------------------------------------------------------------------------------------


def role_of_its_own(template: Json) -> list[str]:
    """Every function has a role of its own, with policies that this template spells out."""
    resources = resolved(template)
    roles = {key: key_of(each["Role"]) for key, each in functions(resources).items()}
    wrong = [
        f"{key} shares {role}"
        for key, role in roles.items()
        if list(roles.values()).count(role) > 1
    ]
    for role in set(roles.values()):
        for attached in of_type(resources, "AWS::IAM::Role")[role].get("ManagedPolicyArns", []):
            if key_of(attached) not in resources:
                wrong.append(f"{role} has {attached}, which is not spelled out here")
    return wrong


def named_resources(template: Json) -> list[str]:
    """No policy that allows something has a wildcard where a name could stand."""
    wrong = []
    for given in ({}, {"ModelProvider": "bedrock"}):
        resources = resolved(template, given)
        for role in of_type(resources, "AWS::IAM::Role"):
            for action, resource in statements(resources, role):
                if "*" in action:
                    wrong.append(f"{role}: {action} is not one action")
                opened = "*" in resource or "?" in resource
                if opened and not any(re.fullmatch(each, resource) for each in OPEN):
                    wrong.append(f"{role}: {action} on {resource}")
    return wrong


def settings_that_are_used(template: Json) -> list[str]:
    """A function is told of a queue, the bucket, the topic or the model only if it may use it, and the other way."""
    resources, wrong = resolved(template), []
    own = {each["FunctionName"].rsplit("-", 1)[-1]: each for each in mappings(resources).values()}
    for key, properties in functions(resources).items():
        can = allowed(resources, key)
        variables = properties["Environment"]["Variables"]
        told = {key_of(url) for name, url in variables.items() if name.startswith("QUEUE_")}
        sends = {key_of(where) for action, where in can if action == "sqs:SendMessage"}
        takes = {key_of(own[key]["EventSourceArn"])} if key in own else set()
        # Who buries has to know where a dead message came from, and sends to none that strangers write to.
        extra = {"IntakeQueue", "AnswerQueue"} if takes == {"DeadQueue"} else set()
        if told != sends | takes | extra:
            wrong.append(f"{key} knows {sorted(told)}, and uses {sorted(sends | takes | extra)}")
        for name, action in NEEDS.items():
            used = any(fnmatchcase(each, action) for each, _ in can)
            if used != (name in variables):
                wrong.append(
                    f"{key}: {name} is {'given' if name in variables else 'missing'}, {action}: {used}"
                )
    return wrong


# --- queues ------------------------------------------------------------------------------------------------


def partial_responses(template: Json) -> list[str]:
    """REQ-SAM-01: every mapping of a queue reads partial responses."""
    return [
        f"{key} does not report batch item failures"
        for key, each in mappings(resolved(template)).items()
        if each.get("FunctionResponseTypes") != ["ReportBatchItemFailures"]
    ]


def redrives(template: Json) -> list[str]:
    """REQ-SAM-01: every source queue redrives, to a queue of its kind, after five receives; the last one is kept."""
    resources, wrong = resolved(template), []
    known = queues(resources)
    for mapping in mappings(resources).values():
        key = key_of(mapping["EventSourceArn"])
        policy = known[key].get("RedrivePolicy")
        if policy is None:
            wrong.append(f"{key} has no dead-letter queue")
            continue
        target = known.get(key_of(policy["deadLetterTargetArn"]), {})
        if bool(target.get("FifoQueue")) != bool(known[key].get("FifoQueue")):
            wrong.append(f"{key} redrives to a queue of another kind")
        if int(policy["maxReceiveCount"]) < 5:
            wrong.append(f"{key} gives up after {policy['maxReceiveCount']} receives")
        days = int(target.get("MessageRetentionPeriod", 345_600))
        if days <= int(known[key].get("MessageRetentionPeriod", 345_600)):
            wrong.append(f"{key}: its dead-letter queue does not keep longer than itself")
    return wrong


def one_dead_letter_queue(template: Json) -> list[str]:
    """All stages redrive to one queue, it to the terminal queue, and no stage's queue takes dead letters."""
    resources = resolved(template)
    known, wrong = queues(resources), []
    consumed = {key_of(each["EventSourceArn"]) for each in mappings(resources).values()}
    targets = {
        key: key_of(each["RedrivePolicy"]["deadLetterTargetArn"])
        for key, each in known.items()
        if "RedrivePolicy" in each
    }
    dead = {targets[key] for key in consumed if key in targets} & consumed
    if len(dead) != 1:
        wrong.append(f"dead letters of stages go to {sorted(dead)}")
    if {targets.get(key) for key in dead} & (consumed | {None}):
        wrong.append("the dead-letter queue has no terminal queue behind it")
    for key in consumed - dead:
        if targets.get(key) not in dead:
            wrong.append(f"{key} redrives to {targets.get(key)}")
        if known[key].get("RedriveAllowPolicy") != {"redrivePermission": "denyAll"}:
            wrong.append(f"{key} lets other queues use it for their dead letters")
    return wrong


def visibility(template: Json) -> list[str]:
    """A queue hides a message for six times what its function may run, and the window of its mapping."""
    resources, wrong = resolved(template), []
    for mapping in mappings(resources).values():
        key, function = key_of(mapping["EventSourceArn"]), key_of(mapping["FunctionName"])
        least = 6 * int(functions(resources)[function].get("Timeout", 3))
        least += int(mapping.get("MaximumBatchingWindowInSeconds", 0))
        if int(queues(resources)[key].get("VisibilityTimeout", 30)) < least:
            wrong.append(f"{key} hides a message for less than {least} s")
    return wrong


def concurrency(template: Json) -> list[str]:
    """Every mapping has a cap within what the service takes; no function reserves what a new account does not have."""
    wrong = []
    for scale in template["Parameters"]["Scale"]["AllowedValues"]:
        resources = resolved(template, {"Scale": scale})
        for key, mapping in mappings(resources).items():
            cap = mapping.get("ScalingConfig", {}).get("MaximumConcurrency", 0)
            if not 2 <= cap <= 1000:
                wrong.append(f"{key} has no maximum concurrency")
    # A new account has ten executions, all of which have to stay unreserved.
    for key, each in functions(resources).items():
        if "ReservedConcurrentExecutions" in each:
            wrong.append(f"{key} reserves executions")
    return wrong


def chains(template: Json) -> list[str]:
    """A function that a chain of messages can come back to says so; no other does.

    The chain is read off what functions may send to, what they consume, and where queues redrive to.
    """
    resources, wrong = resolved(template), []
    consumer = {
        key_of(each["EventSourceArn"]): key_of(each["FunctionName"])
        for each in mappings(resources).values()
    }
    edges: dict[str, set[str]] = {}
    for queue, function in consumer.items():
        policy = queues(resources)[queue].get("RedrivePolicy", {})
        target = consumer.get(key_of(policy.get("deadLetterTargetArn", "")))
        sent = {
            key_of(w) for action, w in allowed(resources, function) if action == "sqs:SendMessage"
        }
        edges[function] = {consumer[each] for each in sent} | ({target} - {None})
    for key, each in functions(resources).items():
        loops = key in reachable(edges, key)
        # What notify cannot tell is buried, and bury never sends it again: the message ends there.
        sends = any(action == "sqs:SendMessage" for action, _ in allowed(resources, key))
        if (loops and sends) != (each.get("RecursiveLoop") == "Allow"):
            wrong.append(f"{key}: a chain {'comes' if loops else 'never comes'} back to it")
    return wrong


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """What can be got to from a node in one step or more."""
    seen: set[str] = set()
    left = list(edges.get(start, ()))
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += edges.get(node, ())
    return seen


# --- what holds data ---------------------------------------------------------------------------------------


def encrypted(template: Json) -> list[str]:
    """Everything that keeps something is encrypted."""
    resources = resolved(template)
    wrong = [
        f"{key} is not encrypted"
        for key, each in queues(resources).items()
        if not each.get("SqsManagedSseEnabled") and not each.get("KmsMasterKeyId")
    ]
    for key, each in of_type(resources, "AWS::SNS::Topic").items():
        if not each.get("KmsMasterKeyId"):
            wrong.append(f"{key} is not encrypted")
    for key, each in of_type(resources, "AWS::DynamoDB::Table").items():
        if not each.get("SSESpecification", {}).get("SSEEnabled"):
            wrong.append(f"{key} is not encrypted")
    for key, each in of_type(resources, "AWS::S3::Bucket").items():
        if not each.get("BucketEncryption"):
            wrong.append(f"{key} is not encrypted")
    return wrong


def tls_only(template: Json) -> list[str]:
    """Queues, buckets and topics refuse whoever does not come by TLS."""
    resources, wrong = resolved(template), []
    kinds = {
        "AWS::SQS::Queue": ("AWS::SQS::QueuePolicy", "Queues"),
        "AWS::SNS::Topic": ("AWS::SNS::TopicPolicy", "Topics"),
        "AWS::S3::Bucket": ("AWS::S3::BucketPolicy", "Bucket"),
    }
    for kind, (policies, property_name) in kinds.items():
        covered: set[str] = set()
        for policy in of_type(resources, policies).values():
            if any(map(_denies_plain, policy["PolicyDocument"]["Statement"])):
                covered |= {
                    re.split(r"[/:]", place)[-1].lower() for place in listed(policy[property_name])
                }
        for key in of_type(resources, kind):
            if f"stafette-local-{key}".lower() not in covered:
                wrong.append(f"{key} can be spoken to in the clear")
    return wrong


def _denies_plain(statement: Json) -> bool:
    everyone = {"Effect": "Deny", "Principal": "*"}.items() <= statement.items()
    return everyone and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}


def private_bucket(template: Json) -> list[str]:
    """No object of a bucket can be made public, and what the library puts there expires."""
    wrong = []
    for key, each in of_type(resolved(template), "AWS::S3::Bucket").items():
        access = each.get("PublicAccessBlockConfiguration", {})
        for name in (
            "BlockPublicAcls",
            "BlockPublicPolicy",
            "IgnorePublicAcls",
            "RestrictPublicBuckets",
        ):
            if access.get(name) is not True:
                wrong.append(f"{key} lacks {name}")
    return wrong


def artifacts_outlive_items(template: Json) -> list[str]:
    """Whatever the retention, an object lies in the bucket longer than the items that refer to it."""
    wrong = []
    for days in template["Parameters"]["RetentionDays"]["AllowedValues"]:
        for key, each in of_type(
            resolved(template, {"RetentionDays": days}), "AWS::S3::Bucket"
        ).items():
            rules = each.get("LifecycleConfiguration", {}).get("Rules", [])
            kept = [
                int(rule["ExpirationInDays"])
                for rule in rules
                if rule.get("Prefix") == "artifacts/"
            ]
            if not kept:
                wrong.append(f"{key} keeps artifacts for ever")
            elif min(kept) < int(days) + LONGEST_LIFE // 86_400 + 2:
                wrong.append(
                    f"{key} keeps artifacts for {min(kept)} days with a retention of {days}"
                )
    return wrong


def kept_data(template: Json) -> list[str]:
    """What holds data outlives its stack, cannot be replaced by a change of its name, and can be got back."""
    wrong = []
    for key, each in translated(template)["Resources"].items():
        if each["Type"] not in ("AWS::DynamoDB::Table", "AWS::S3::Bucket"):
            continue
        if each.get("DeletionPolicy") not in ("Retain", "RetainExceptOnCreate"):
            wrong.append(f"{key} goes when the stack goes")
        if each.get("UpdateReplacePolicy") != "Retain":
            wrong.append(f"{key} goes when it is replaced")
        if {"TableName", "BucketName"} & set(each["Properties"]):
            wrong.append(f"{key} has a name of its own, a change of which would replace it")
    protection = {
        given: of_type(resolved(template, {"DeletionProtection": given}), "AWS::DynamoDB::Table")
        for given in ("true", "false")
    }
    for given, tables in protection.items():
        for key, table in tables.items():
            if table.get("DeletionProtectionEnabled") != given:
                wrong.append(f"{key} does not take DeletionProtection")
            if not table.get("PointInTimeRecoverySpecification", {}).get(
                "PointInTimeRecoveryEnabled"
            ):
                wrong.append(f"{key} has no point-in-time recovery")
            if not table.get("TimeToLiveSpecification", {}).get("Enabled"):
                wrong.append(f"{key} lets nothing expire")
    return wrong


# --- being seen --------------------------------------------------------------------------------------------


def logs_that_end(template: Json) -> list[str]:
    """Every function writes to a log group of this template, and every log group forgets."""
    resources = resolved(template)
    groups = of_type(resources, "AWS::Logs::LogGroup")
    wrong = [
        f"{key} keeps logs for ever" for key, e in groups.items() if not e.get("RetentionInDays")
    ]
    for key, each in functions(resources).items():
        if key_of(each.get("LoggingConfig", {}).get("LogGroup", "")) not in groups:
            wrong.append(f"{key} logs to a group that keeps for ever")
    return wrong


def alarms(template: Json) -> list[str]:
    """Something tells of dead records, stuck jobs, a sweep that fails, a terminal message, and age on every queue."""
    told = "arn:aws:sns:us-east-1:123456789012:told"
    resources = resolved(template, {"AlarmTopicArn": told})
    found, wrong = set(), []
    for key, each in of_type(resources, "AWS::CloudWatch::Alarm").items():
        where = {d["Name"]: key_of(d["Value"]) for d in each["Dimensions"]}
        found.add((each["MetricName"], *where.values()))
        if each.get("AlarmActions") != [told]:
            wrong.append(f"{key} tells nobody")
    consumed = {key_of(each["EventSourceArn"]) for each in mappings(resources).values()}
    wanted = {("ApproximateAgeOfOldestMessage", key) for key in consumed}
    wanted |= {
        ("ApproximateNumberOfMessagesVisible", key) for key in set(queues(resources)) - consumed
    }
    # Two stacks of one account must not hear of each other: the service is the stack.
    wanted |= {
        ("DeadRecords", "stafette-local"),
        ("StuckJobs", "stafette-local"),
        ("Errors", "Sweep"),
    }
    wrong += [f"no alarm on {' of '.join(each)}" for each in sorted(wanted - found)]
    for key, each in functions(resources).items():
        if each["Environment"]["Variables"].get("POWERTOOLS_SERVICE_NAME") != "stafette-local":
            wrong.append(f"{key} counts under another name than the alarms look for")
    return wrong


def dashboard(template: Json) -> list[str]:
    """One dashboard shows every queue, every function and the table; what it shows is there."""
    resources = resolved(template)
    boards = of_type(resources, "AWS::CloudWatch::Dashboard")
    if len(boards) != 1:
        return [f"{len(boards)} dashboards"]
    [body] = (json.loads(each["DashboardBody"]) for each in boards.values())
    shown = {
        key_of(row[3]) for widget in body["widgets"] for row in widget["properties"]["metrics"]
    } - {"stafette-local"}
    there = {
        key
        for key, each in resources.items()
        if each["Type"] in ("AWS::SQS::Queue", "AWS::Lambda::Function", "AWS::DynamoDB::Table")
    }
    return [f"{key} is not on the dashboard" for key in sorted(there - shown)] + [
        f"{key} is on the dashboard and not in the stack" for key in sorted(shown - there)
    ]


def outputs(template: Json) -> list[str]:
    """The commands find by the outputs every queue and function, the table, the bucket and the topic."""
    said = json.dumps(translated(template)["Outputs"])
    kinds = ("SQS::Queue", "Lambda::Function", "DynamoDB::Table", "S3::Bucket", "SNS::Topic")
    return [
        f"no output names {key}"
        for key, each in resolved(template).items()
        if each["Type"].removeprefix("AWS::") in kinds and f'{{"Ref": "{key}"}}' not in said
    ]


# --- the whole ---------------------------------------------------------------------------------------------


def one_target(template: Json) -> list[str]:
    """REQ-SAM-03: every function and layer states runtime and processor, the same across the stack."""
    resources, stated, wrong = resolved(template), set(), []
    for each in functions(resources).values():
        stated.add((each.get("Runtime"), *each.get("Architectures", [None])))
    for each in of_type(resources, "AWS::Lambda::LayerVersion").values():
        stated.add(
            (*each.get("CompatibleRuntimes", [None]), *each.get("CompatibleArchitectures", [None]))
        )
    if len(stated) != 1 or any(None in each for each in stated):
        wrong.append(
            f"not one runtime and processor, stated everywhere: {sorted(map(str, stated))}"
        )
    return wrong


def no_cycle(template: Json) -> list[str]:
    """REQ-SAM-02: what CloudFormation creates one after the other has an order."""
    resources = translated(template)["Resources"]
    edges = {key: set(references(each)) & set(resources) for key, each in resources.items()}
    for key in edges:
        if path := way(edges, key, key):
            return [" -> ".join(path)]
    return []


def way(edges: Mapping[str, set[str]], start: str, end: str) -> list[str]:
    """The nodes from one to the other, in one step or more; empty if there is no way."""
    ways, seen = [[start]], set()
    for path in ways:
        for node in sorted(edges.get(path[-1], ())):
            if node == end:
                return [*path, node]
            if node not in seen:
                seen.add(node)
                ways.append([*path, node])
    return []


def references(value: Any) -> Iterator[str]:
    """The names that a piece of a translated template refers to."""
    if isinstance(value, list):
        for each in value:
            yield from references(each)
    if not isinstance(value, dict):
        return
    for name, each in value.items():
        match name, each:
            case "Ref", str():
                yield each
            case "Fn::GetAtt", list():
                yield each[0]
            case "Fn::GetAtt", str():
                yield each.split(".")[0]
            case "DependsOn", _:
                yield from listed(each)
            case "Fn::Sub", str():
                yield from _PLACEHOLDER.findall(each)
            case "Fn::Sub", [str() as text, dict() as given]:
                yield from set(_PLACEHOLDER.findall(text)) - set(given)
                yield from references(given)
            case _:
                yield from references(each)


def nothing_hidden(template: Json) -> list[str]:
    """There is no nested stack: these rules would not see into it."""
    nested = ("AWS::CloudFormation::Stack", "AWS::Serverless::Application")
    found = {**template["Resources"], **translated(template)["Resources"]}
    return [f"{key} is a nested stack" for key, each in found.items() if each["Type"] in nested]


RULES: tuple[Rule, ...] = (
    role_of_its_own,
    named_resources,
    settings_that_are_used,
    partial_responses,
    redrives,
    one_dead_letter_queue,
    visibility,
    concurrency,
    chains,
    encrypted,
    tls_only,
    private_bucket,
    artifacts_outlive_items,
    kept_data,
    logs_that_end,
    alarms,
    dashboard,
    outputs,
    one_target,
    no_cycle,
    nothing_hidden,
)
