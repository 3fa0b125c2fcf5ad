"""`stafette cost`: what recent jobs cost, model and AWS on lines of their own."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.stack import connected, console, on_stack
from local import aws_prices, bill, costs, show
from local.costs import Costs, Group
from stafette import clock

_DAY = 86_400
# How far back anybody may look: a hundred years.
MOST_DAYS, MOST_JOBS = 36_500, 10_000_000


class By(StrEnum):
    """What costs are summed by."""

    FLOW = "flow"
    AGENT = "agent"
    MODEL = "model"
    TENANT = "tenant"
    DAY = "day"


@on_stack
def cost(
    by: Annotated[
        By, typer.Option(help="A day is the one on which a job was asked for, in UTC.")
    ] = By.FLOW,
    days: Annotated[float, typer.Option(min=0, max=MOST_DAYS, help="How far back it looks.")] = 30,
    tenant: Annotated[str | None, typer.Option(help="Only this one's jobs.")] = None,
    most: Annotated[
        int, typer.Option("--jobs", min=1, max=MOST_JOBS, help="The newest, at most so many.")
    ] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Sum up what jobs cost: models by what was recorded of each call, AWS by an estimate from the records."""
    with connected():
        found = costs.read(by.value, clock.now() - days * _DAY, most, costs.memories(), tenant)
    if as_json:
        typer.echo(json.dumps(as_data(found), indent=2))
        return
    out = console()
    out.print(table(found))
    out.print(totals(found), "", *notes(found, days, most), sep="\n", soft_wrap=True)


def table(found: Costs) -> Table:
    """Two lines a group: its models, and AWS where that can be told."""
    grid = show.grid(
        *(found.by, "what for", ">jobs", ">calls", ">in", ">read", ">written", ">out"),
        *(">saved", ">cost"),
    )
    for key, group in sorted(found.groups.items()):
        name = Text(show.line(key, 40))
        grid.add_row(name, "models", *_of_models(group, found.by in costs.OF_JOBS))
        if found.by in costs.OF_JOBS:
            aws = sum(group.aws_micro.values())
            grid.add_row("", "AWS (estimate)", *[""] * 7, show.usd(aws))
    return grid


def totals(found: Costs) -> Table:
    """What all of it comes to, by what it was paid for."""
    total, grid = found.total, show.grid("all", ">cost", "of what")
    usage, units = total.usage, total.units
    models, aws = usage.cost_micro, sum(total.aws_micro.values())
    said = f"{usage.calls} calls of {total.jobs} jobs, {usage.failed} of them came to nothing"
    grid.add_section()
    grid.add_row("models", show.usd(models), f"{said}; {usage.hits} answers out of the cache")
    place = f"an estimate: list prices {aws_prices.VERSION} of {aws_prices.REGION}"
    grid.add_row("AWS", show.usd(aws), place)
    gb_s = units.mb_ms / 1024 / 1000
    uses = {
        "DynamoDB": f"{units.writes} write units, {units.reads} read units",
        "Lambda": f"{units.invocations} invocations at most, {gb_s:.2f} GB-seconds",
        "SQS and SNS": f"{units.sends} sends, {units.messages} messages taken, {units.publishes} notices",
        "S3": f"{units.puts} artifacts put",
    }
    for service in bill.SERVICES:
        grid.add_row(f"  {service}", show.usd(total.aws_micro[service]), uses[service])
    grid.add_row("together", show.usd(models + aws), "")
    return grid


def notes(found: Costs, days: float, most: int) -> list[str]:
    """What it looked at, and what is not in it."""
    said = [f"Jobs asked for in the last {days:g} days."]
    if found.stopped:
        said.append(f"It stopped at the {most} newest of them: --jobs takes more.")
    if found.expired:
        said.append(
            f"{found.expired} jobs are older than their records: what they cost is not known."
        )
    if found.total.usage.unsettled:
        said.append(
            f"{found.total.usage.unsettled} model calls may have been billed beyond this: nobody said for how much."
        )
    said.append(f"Not in the estimate: {bill.LEFT_OUT}.")
    return said


def as_data(found: Costs) -> dict[str, Any]:
    """For machines. Money in micro-dollars."""
    return {
        "by": found.by,
        "since": found.since,
        "stopped": found.stopped,
        "expired": found.expired,
        "aws_prices": {"version": aws_prices.VERSION, "region": aws_prices.REGION},
        "groups": {
            key: _data(group, aws=found.by in costs.OF_JOBS)
            for key, group in sorted(found.groups.items())
        },
        "total": _data(found.total, aws=True),
    }


def _data(group: Group, *, aws: bool) -> dict[str, Any]:
    jobs = {"jobs": group.jobs, "aws_micro": group.aws_micro} if aws else {}
    return {**jobs, **group.usage.as_data()}


def _of_models(group: Group, of_jobs: bool) -> list[str]:
    usage = group.usage
    tokens = (usage.input, usage.cache_read, usage.cache_write, usage.output)
    return [
        str(group.jobs) if of_jobs else "",
        str(usage.calls),
        *map(str, tokens),
        show.usd(usage.saved_micro) if usage.hits else "",
        show.usd(usage.cost_micro),
    ]
