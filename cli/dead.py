"""`stafette dead`: the messages that nobody could take."""

import json
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from cli import jobs
from cli.stack import FAILED, NOT_FOUND, connected, console, on_stack, stop
from local import show
from stafette import clock
from stafette.aws import dead
from stafette.relay import recovery

app = typer.Typer(no_args_is_help=True, help="Messages that nobody could take: look, and redrive.")


@app.command("list")
@on_stack
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 50,
) -> None:
    """List the dead messages that wait for somebody, newest first."""
    with connected():
        table = show.grid("id", "function", "reason", "job", ">age", "detail")
        found = dead.newest(limit)
        for item in found:
            table.add_row(
                item["id"],
                show.line(item["function"]),
                show.line(item["reason"]),
                show.line(item.get("job_id", "")),
                show.seconds(clock.now() - float(item["at"])),
                show.line(item["detail"], 60),
            )
        console().print(table if found else "no dead messages")


@app.command("show")
@on_stack
def show_(record_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show one dead message whole: where it came from, why it is here, and its body."""
    with connected():
        item = dead.find(record_id)
        if item is None:
            stop(f"there is no dead message {record_id}", NOT_FOUND)
        out = console()
        for name in ("id", "function", "reason", "job_id", "tenant", "origin"):
            if name in item:
                out.print(f"{name:<9} {show.line(item[name], 200)}")
        out.print(f"{'at':<9} {datetime.fromtimestamp(float(item['at']), UTC):%Y-%m-%d %H:%M:%S}Z")
        out.print(Text("detail", style="bold"), Text(show.clean(item["detail"])), sep="\n")
        out.print(Text("body", style="bold"), Text(_pretty(item["body"])), sep="\n")


def _pretty(body: str) -> str:
    try:
        return show.clean(json.dumps(json.loads(body), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return show.clean(body)


@app.command()
@on_stack
def redrive(ids: Annotated[list[str], typer.Argument(metavar="ID...")]) -> None:
    """Try again: a dead message goes back to its queue, a failed job is opened where it failed."""
    with connected():
        codes = [_redrive(given) for given in ids]
    if any(codes):
        raise typer.Exit(max(codes))


def _redrive(given: str) -> int:
    out = console()
    try:
        done = recovery.redrive(given)
    except LookupError:
        # Not the id of a message: then it names a job.
        job = jobs.find(given) if len(given) <= jobs.WHOLE else given
    else:
        out.print(f"{show.line(given)} {done}")
        return 0
    if recovery.reopen(job) is not None:
        out.print(f"{job} reopened")
        return 0
    head = jobs.read(job).head
    why = "only its head is left" if head.expired else "only a failed job is reopened"
    out.print(f"{job} is {head.status.value}: {why}")
    return FAILED
