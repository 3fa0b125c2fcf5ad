"""`stafette trace`: what a job spent its time and its money on, as a waterfall."""

import json
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from cli import jobs
from cli.stack import NOT_FOUND, USAGE, connected, console, on_stack, stop
from local import show, traces, waterfall
from stafette import clock


@on_stack
def trace(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]")] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="In place of a job id.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose request it was.")] = "default",
    every: Annotated[
        bool, typer.Option("--all", help="Every part of a fan-out, not only the slowest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show what a job spent its time and its money on: stages, parts, model calls, on one axis, with totals."""
    if (job is None) == (request_id is None):
        stop("give a job or --request-id", USAGE)
    with connected():
        job_id = jobs.chosen(job, request_id, tenant)
        told = traces.read(job_id, clock.now(), every_part=every)
        if told is None:
            stop(f"there is no job {job_id}", NOT_FOUND)
        if as_json:
            typer.echo(json.dumps(told.as_data(), indent=2, default=str))
            return
        out, head = console(), told.head
        out.print(
            Text.assemble(f"job {head.job_id}  ", show.status(head.status), f" at {head.stage}"),
            f"tenant {show.line(head.tenant)}, flow {show.line(head.flow) or '-'}, "
            f"asked {datetime.fromtimestamp(head.created, UTC):%Y-%m-%d %H:%M:%S}Z",
            sep="\n",
        )
        if head.reason:
            out.print(Text(show.ending(head), style="red"))
        for each in waterfall.lines(told, out.width):
            out.print(Text(each.text, style="red" if each.bad else ""), soft_wrap=True)
        out.print(waterfall.LEGEND, *waterfall.totals(told), sep="\n")
