"""`stafette`: sends work to a stack, watches it, and reads what became of it."""

import json
import time
from typing import Annotated

import typer
from rich.text import Text

from cli import agents, cost, dead, doctor, feedback, forms, inbox, jobs, prove, read, trace
from cli import eval as evals
from cli.stack import DEADLINE, FAILED, NOT_FOUND, USAGE, connected, console, on_stack, stop
from cli.wait import summary, wait
from local import show
from stafette import clock
from stafette.aws.dead import listed
from stafette.core.job import Head, Status
from stafette.relay import recovery

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Multi-agent work as queue jobs, on the stack that `make local` runs or on a deployed one.",
)
app.add_typer(dead.app, name="dead")
app.command()(agents.agents)
app.command()(doctor.doctor)
app.command("eval")(evals.command)
app.command()(feedback.feedback)
app.command()(forms.forms)
app.command()(forms.answer)
app.command("prove")(prove.command)
app.command()(trace.trace)
app.command()(cost.cost)
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job id, or its beginning.")]
# As far back as `jobs --status` looks.
_NEWEST = 1_000


@app.command()
@on_stack
def send(
    source: Annotated[str, typer.Argument(metavar="FILE|-")],
    tenant: Annotated[str | None, typer.Option(help="On whose behalf.")] = None,
    flow: Annotated[str | None, typer.Option(help="The kind of job.")] = None,
    wait_: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Wait until all have ended, and sum up. Default: only if there are several.",
        ),
    ] = None,
    deadline: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 600.0,
) -> None:
    """Send requests: one event (.json), one a line (.jsonl), a table with a column `text` (.csv), or lines of text.

    Prints the job ids. Exit code 0: all done, 1: some failed or were refused, 3: some were not found, 4: the
    deadline passed.
    """
    try:
        requests = read.requests(source, tenant, flow)
    except read.UnreadableError as error:
        stop(str(error), USAGE)
    with connected() as stack:
        out = console()
        before, began = stack.aws_calls(), time.monotonic()
        sent = []
        try:
            for each in inbox.put(requests):
                sent.append(each)
                out.print(each.job_id)
        except inbox.NotAcceptedError as error:
            stop(f"{error}; {len(sent)} of {len(requests)} were sent", FAILED)
        if not (len(sent) > 1 if wait_ is None else wait_):
            return
        waited = wait(sent, deadline, began, out)
        after = stack.aws_calls()
        calls = None if before is None or after is None else after - before
        summary(sent, waited, calls, out)
    if waited.timed_out:
        unseen = {each.job_id for each in sent} - waited.seen - waited.ended.keys()
        raise typer.Exit(NOT_FOUND if unseen else DEADLINE)
    if set(waited.ended.values()) - {Status.DONE.value}:
        raise typer.Exit(FAILED)


@app.command()
@on_stack
def watch(job: JobArgument) -> None:
    """Follow a job until it ends. Exit code 0: done, 1: failed or cancelled, 3: not found."""
    with connected():
        out = console()
        told = show.follow(jobs.find(job), out)
        if told is None:
            stop(f"there is no job {job}", NOT_FOUND)
        tokens_in, tokens_out = told.tokens
        out.print(
            Text.assemble(show.status(told.head.status), f" {show.ending(told.head)}".rstrip())
        )
        out.print(
            f"{len(told.calls)} model calls, {tokens_in} tokens in, {tokens_out} out, "
            f"{show.usd(told.cost_micro)}"
        )
    if told.head.status is not Status.DONE:
        raise typer.Exit(FAILED)


@app.command("jobs")
@on_stack
def jobs_(
    limit: Annotated[int, typer.Option(min=1, max=_NEWEST, help="How many at most.")] = 20,
    status: Annotated[
        Status | None, typer.Option(help=f"Only these, of the {_NEWEST} newest.")
    ] = None,
) -> None:
    """List jobs, newest first."""
    with connected():
        table = show.grid("job", "tenant", "flow", "stage", "status", ">age", "reason")
        heads = (
            Head.from_item(item) for item in listed("JOB", limit if status is None else _NEWEST)
        )
        found = [head for head in heads if status in (None, head.status)][:limit]
        for head in found:
            table.add_row(
                head.job_id,
                show.line(head.tenant),
                show.line(head.flow),
                show.line(head.stage),
                show.status(head.status),
                show.seconds(clock.now() - head.created),
                show.line(head.reason or ""),
            )
        console().print(table if found else "no jobs")


@app.command("show")
@on_stack
def show_(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]")] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="In place of a job id.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose request it was.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show everything that is known of a job."""
    if (job is None) == (request_id is None):
        stop("give a job or --request-id", USAGE)
    with connected():
        told = jobs.read(jobs.chosen(job, request_id, tenant))
        if as_json:
            typer.echo(json.dumps(jobs.as_data(told), indent=2, default=str))
        else:
            jobs.print_story(told, console())


@app.command()
@on_stack
def cancel(
    job: JobArgument,
    why: Annotated[str, typer.Option(help="Kept with the job.")] = "cancelled by hand",
) -> None:
    """Cancel a job: its next claim, model call and effect are refused."""
    with connected():
        head = recovery.cancel(jobs.find(job), why)
        if head is None:
            stop(f"there is no job {job}", NOT_FOUND)
        console().print(f"{head.job_id} is {head.status.value}")
    if head.status is not Status.CANCELLED:
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    app()
