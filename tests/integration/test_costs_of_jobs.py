"""What `stafette cost` says is what was really called: against the calls of a run, and the same sum on every axis."""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from cli import cost as command
from local import costs
from local.model import error, says
from local.serve import settings_of
from stafette import clock
from stafette.aws import table
from tests.support import Ledger, Stack, running_stack

SILENT = {"POWERTOOLS_LOG_LEVEL": "CRITICAL", "POWERTOOLS_METRICS_DISABLED": "true"}


@pytest.fixture(scope="module", params=["0", "100"], ids=["tenant-without-cap", "tenant-with-cap"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    environment = {**SILENT, "TENANT_BUDGET_USD": request.param}
    with running_stack(environment=environment) as running:
        with patch.dict(os.environ, {**settings_of(running.machine), **SILENT}):
            yield running


def summed(by: str, since: float = 0.0, **more: object) -> costs.Costs:
    return costs.read(by, since, 1_000, costs.memories(), **more)  # type: ignore[arg-type]


def used(stack: Stack, name: str, records: int, **changes: object) -> tuple[Ledger, costs.Costs]:
    """A ticket: what its calls came to, and what its records say."""
    stack.machine.clock.advance(100)  # type: ignore[attr-defined]
    since = clock.now()
    with stack.counting() as ledger:
        stack.run(name, records, **changes)
    return ledger, summed("flow", since)


@pytest.mark.parametrize("records", [0, 1, 12, 101])
def test_estimate_of_an_undisturbed_job_is_what_was_counted(stack: Stack, records: int) -> None:
    ledger, found = used(stack, f"counted-{records}", records)
    units = found.total.units
    assert (units.writes, units.reads, units.sends) == (ledger.writes, ledger.reads, ledger.sends)
    assert units.messages == sum(cost.messages for cost in ledger.costs) + 1  # the request
    assert found.total.jobs == 1
    assert units.publishes == 1


def test_estimate_counts_results_by_their_size_and_what_lies_in_the_bucket(stack: Stack) -> None:
    before = len(stack.machine.calls)
    ledger, found = used(stack, "large", 2, text="My card was charged. " * 2_500)
    units = found.total.units
    assert (units.writes, units.reads, units.sends) == (ledger.writes, ledger.reads, ledger.sends)
    puts = [call for call in stack.machine.calls[before:] if call.operation == "PutObject"]
    kept = [call for call in puts if call.parameters["Key"].startswith("artifacts/")]
    assert units.puts == len(kept) > 0


def test_estimate_counts_a_wait_for_the_model(stack: Stack) -> None:
    stack.model.script(error(429, "rate_limit_error", {"retry-after": "30"}))
    ledger, found = used(stack, "throttled", 0)
    units = found.total.units
    assert (units.writes, units.sends) == (ledger.writes, ledger.sends)
    assert units.reads == ledger.reads


def test_every_axis_comes_to_the_same_sum_whatever_became_of_calls_and_jobs(stack: Stack) -> None:
    # A refusal, an answer thrown away, one whose usage nobody knows, and a job that failed.
    stack.model.script(says([], "refusal"))
    stack.run("refused", 0)
    stack.model.script(says("not JSON"))
    stack.run("thrown-away", 0)
    stack.model.script(error(503, "api_error"))
    stack.run("unknown", 2)
    found = {by: summed(by) for by in costs.AXES}
    totals = [each.total.usage.as_data() for each in found.values()]
    assert all(total == totals[0] for total in totals)
    for by, each in found.items():
        for name, total in each.total.usage.as_data().items():
            groups = [group.usage.as_data()[name] for group in each.groups.values()]
            assert sum(groups) == total, (by, name)
    for by in costs.OF_JOBS:
        groups = found[by].groups.values()
        assert sum(group.jobs for group in groups) == found[by].total.jobs
        for service, micro in found[by].total.aws_micro.items():
            assert sum(group.aws_micro[service] for group in groups) == micro
    paid = [item for item in every_call(stack) if "cache" not in item]
    assert totals[0]["cost_micro"] == sum(item["cost_micro"] for item in paid) > 0
    assert totals[0]["calls"] == len(paid)
    assert totals[0]["unsettled"] == 1
    assert {"refused", "invalid_answer", "model_error"} <= {item["outcome"] for item in paid}
    assert set(found["agent"].groups) == {"classifier", "record_reader", "writer"}
    assert set(found["model"].groups) == {"claude-haiku-5-5", "claude-sonnet-5-5"}


def every_call(stack: Stack) -> list[dict[str, object]]:
    """The records of all model calls that the table holds."""
    pages = stack.machine.client("dynamodb").get_paginator("scan")
    items = [
        table._from_attributes(item)
        for page in pages.paginate(TableName=stack.machine.table)
        for item in page["Items"]
    ]
    return [item for item in items if item["sk"].startswith("CALL#")]


def test_it_says_how_far_it_looked(stack: Stack) -> None:
    for n in range(3):
        stack.run(f"near-{n}", 0)
    every = summed("flow")
    few = costs.read("flow", 0.0, 2, costs.memories())
    assert (every.stopped, few.stopped, few.total.jobs) == (False, True, 2)
    assert any("stopped at the 2 newest" in said for said in command.notes(few, 30, 2))
    assert summed("flow", clock.now() + 1).total.jobs == 0
    assert summed("flow", tenant="nobody").total.jobs == 0
    assert summed("flow", tenant="acme").total.jobs == every.total.jobs


def test_models_and_aws_are_on_lines_of_their_own_and_the_estimate_says_so(stack: Stack) -> None:
    stack.run("lines", 0)
    found = summed("flow")
    columns = [list(column.cells) for column in command.table(found).columns]
    assert columns[1] == ["models", "AWS (estimate)"] * len(found.groups)
    totals = [list(map(str, column.cells)) for column in command.totals(found).columns]
    lines = dict(zip(totals[0], totals[1], strict=True))
    micro = {name: round(float(cost[1:]) * 1e6) for name, cost in lines.items()}
    assert micro["together"] == micro["models"] + micro["AWS"]
    assert micro["AWS"] == sum(n for name, n in micro.items() if name.startswith("  "))
    assert any("an estimate: list prices" in text for text in totals[2])
    by_agent = list(command.table(summed("agent")).columns[1].cells)
    assert set(by_agent) == {"models"}  # AWS is not an agent's
    assert command.as_data(found)["total"]["cost_micro"] == micro["models"]


def test_jobs_whose_records_are_gone_are_said_to_be_unknown(stack: Stack) -> None:
    job_id = stack.run("old", 0)
    client = stack.machine.client("dynamodb")
    for item in stack.partition(f"JOB#{job_id}"):
        if item["sk"] != "JOB":
            key = {"pk": {"S": item["pk"]}, "sk": {"S": item["sk"]}}
            client.delete_item(TableName=stack.machine.table, Key=key)
    found = summed("flow")
    assert found.expired == 1
    assert any("older than their records" in said for said in command.notes(found, 30, 1_000))
