"""`stafette forms` and `stafette answer`: what waits for a person, and what the person says."""

import json
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer
from rich.text import Text

from cli import jobs
from cli.stack import FAILED, NOT_FOUND, USAGE, connected, console, on_stack, stop
from local import show
from stafette import clock
from stafette.aws import forms as kept
from stafette.aws.dead import listed
from stafette.core.asked import Asked, State
from stafette.core.body import read_json
from stafette.core.errors import RefusedError
from stafette.core.messages import read_answer
from stafette.relay import answers


@on_stack
def forms(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Show the open forms of this job whole.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List what waits for a person, newest first; with a job, show what it asks, whole."""
    with connected():
        found = _of_job(jobs.find(job)) if job else _newest(limit)
        if as_json:
            told = [form.model_dump(mode="json", exclude={"work"}) for form in found]
            typer.echo(json.dumps(told, indent=2))
        elif not found:
            console().print("no open forms")
        elif job:
            for form in found:
                _print(form)
        else:
            _list(found)


@on_stack
def answer(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job id, or its beginning.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="JSON values, or text as it is."),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--form", help="Which one, if the job asks several.")
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="TEXT|-", help="The whole answer as JSON.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who says so; kept with the job.")] = None,
) -> None:
    """Answer a form. The first valid answer stands. Exit code 1: it is not valid, or another one stands."""
    if (as_json is None) == (not values):
        stop("give the answer as NAME=VALUE, or with --json", USAGE)
    with connected():
        job_id = jobs.find(job)
        value = _value(as_json) if as_json is not None else dict(map(_pair, values or ()))
        given = {"job_id": job_id, "form": form or _only(job_id), "answer": value, "by": by}
        try:
            standing = answers.answer(read_answer(given))
        except RefusedError as error:
            missing = error.reason in ("unknown_job", "unknown_form")
            stop(f"{error.reason}: {error}", NOT_FOUND if missing else FAILED)
        said = json.dumps(standing.answer, ensure_ascii=False)
        console().print(show.line(f"{standing.id} is answered by {standing.by}: {said}", 1000))
    if standing.answer != value:
        stop("an earlier answer stands", FAILED)


def _newest(limit: int) -> list[Asked]:
    items = listed("FORM", limit)
    found = (kept.get(item["pk"].removeprefix("JOB#"), item["id"]) for item in items)
    return [form for form in islice(found, limit) if form and form.state is State.OPEN]


def _of_job(job_id: str) -> list[Asked]:
    return [form for form in kept.of(job_id) if form.state is State.OPEN]


def _only(job_id: str) -> str:
    found = _of_job(job_id)
    if not found:
        stop(f"job {job_id} asks nothing", NOT_FOUND)
    if len(found) > 1:
        ids = ", ".join(form.id for form in found[:10])
        stop(f"job {job_id} asks {len(found)} forms; choose with --form: {ids}", USAGE)
    return found[0].id


def _value(text: str) -> Any:
    try:
        return read_json(sys.stdin.read() if text == "-" else text)
    except RefusedError as error:
        stop(f"the answer cannot be read: {error}", USAGE)


def _pair(text: str) -> tuple[str, Any]:
    name, given, value = text.partition("=")
    if not given:
        stop(f"{text} is not NAME=VALUE", USAGE)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _list(found: list[Asked]) -> None:
    table = show.grid("job", "form", "scope", ">age", ">left", "question")
    now = clock.now()
    for form in found:
        table.add_row(
            form.job_id,
            show.line(form.id),
            form.scope,
            show.seconds(now - form.asked),
            show.seconds(form.deadline - now),
            show.line(form.question, 60),
        )
    console().print(table)


def _print(form: Asked) -> None:
    out = console()
    until = f"{datetime.fromtimestamp(form.deadline, UTC):%Y-%m-%d %H:%M:%S}Z"
    waits = "the whole job" if form.scope == "job" else form.handoff
    out.print(Text(f"form {form.id}", style="bold"))
    out.print(f"waits   {waits}, until {until}")
    out.print(Text(f"asks    {show.clean(form.question)}"))
    for title, value in (("facts", form.facts), ("answer", form.answers)):
        text = json.dumps(value, indent=2, ensure_ascii=False)
        out.print(Text(title, style="bold"), Text(show.clean(text)), sep="\n")
