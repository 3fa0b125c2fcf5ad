"""`stafette feedback`: what people say of finished jobs, as labelled data."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

from cli import jobs
from cli.stack import FAILED, NOT_FOUND, USAGE, connected, console, on_stack, stop
from flows.catalog import FLOWS, agent_of
from local import show
from stafette import clock
from stafette.agent import route
from stafette.agent.definition import NOBODY, DefinitionError
from stafette.aws import feedback as kept
from stafette.aws import store
from stafette.core.job import Head

# Of who says something: it is read with every request that is routed.
_LONGEST_NAME = 100


class Word(StrEnum):
    """What somebody says of where a job went."""

    RIGHT = "right"
    WRONG = "wrong"


@on_stack
def feedback(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="A job id, or its beginning.")
    ] = None,
    word: Annotated[Word | None, typer.Argument(metavar="[right|wrong]")] = None,
    should_be: Annotated[
        str | None,
        typer.Option("--should-be", metavar="AGENT", help=f"Where it belonged; {NOBODY}: nowhere."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who says so. Default: the user's name.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Write what was said so far, for `stafette eval`."),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Of whose jobs, with --export.")] = "default",
) -> None:
    """Say whether a finished job went to the right agent, or export all that was said.

    What is said becomes an example for the router, for requests of the same tenant. Of one job the latest word counts.
    """
    if (job is None) == (export is None) or (job is None) != (word is None):
        stop("give JOB and right or wrong, or --export FILE.jsonl", USAGE)
    if (should_be is not None) != (word is Word.WRONG):
        stop("wrong needs --should-be AGENT, and nothing else takes it", USAGE)
    if should_be is not None:
        _check(should_be)
    if by is not None and len(by) > _LONGEST_NAME:
        stop(f"--by: a name has at most {_LONGEST_NAME} characters", USAGE)
    with connected():
        if export is not None:
            _export(export, tenant)
        elif job is not None:
            said = _said(jobs.find(job), should_be, by or _me())
            kept.give(said)
            console().print(
                show.line(f"{said.job_id} went to {said.decided} and belonged to {said.agent}")
            )


def _me() -> str:
    try:
        return getuser()[:_LONGEST_NAME]
    except (KeyError, OSError, ImportError):
        stop("this machine has no name for its user: give --by", USAGE)


def _check(agent: str) -> None:
    try:
        known = [place.agent for place in route.places(FLOWS)]
    except DefinitionError as error:
        stop(str(error), FAILED)
    if agent not in (*known, NOBODY):
        stop(
            f"there is no agent {agent} that requests go to; there are: {', '.join(known)}, {NOBODY}",
            USAGE,
        )


def _said(job_id: str, should_be: str | None, by: str) -> kept.Feedback:
    head = store.head(job_id)
    if head is None:
        stop(f"there is no job {job_id}", NOT_FOUND)
    if not head.status.ended:
        stop(f"job {job_id} is {head.status.value}: feedback is on finished jobs", FAILED)
    decided = _decided(head)
    if decided is None:
        stop(f"job {job_id} ended as {head.status.value} before it was routed", FAILED)
    if should_be == decided:
        stop(f"job {job_id} did go to {decided}: that was right", USAGE)
    asked = store.winning_result(head, "intake")
    if asked is None:
        stop(f"the request of job {job_id} has expired", FAILED)
    return kept.Feedback(
        tenant=head.tenant,
        job_id=job_id,
        text=route.about(asked.value["input"]),
        decided=decided,
        agent=should_be or decided,
        by=by,
        at=clock.now(),
    )


def _decided(head: Head) -> str | None:
    """The agent that a job went to; `none` if a person said that it is for none; None if nobody came to decide."""
    if "route" in head.won:
        return agent_of(head.flow, head.agent)
    return NOBODY if head.reason == route.NO_PLACE else None


def _export(file: Path, tenant: str) -> None:
    found = kept.every(tenant)
    if not found:
        stop(f"nobody said anything of jobs of tenant {tenant}", NOT_FOUND)
    try:
        with file.open("w", encoding="utf-8") as out:
            for said in reversed(found):
                at = datetime.fromtimestamp(said.at, UTC).isoformat(timespec="seconds")
                line = {"text": said.text, "label": said.agent, "decided": said.decided}
                line |= {"job_id": said.job_id, "by": said.by, "at": at}
                out.write(json.dumps(line) + "\n")
    except OSError as error:
        stop(f"{file} cannot be written: {error}", FAILED)
    console().print(f"{len(found)} lines in {file}")
