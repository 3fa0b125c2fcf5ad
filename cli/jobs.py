"""Jobs by what a person types: an id, its beginning, or the id of the request."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.stack import NOT_FOUND, USAGE, stop
from local import show, story
from local.story import Story
from stafette.core.messages import job_id

WHOLE, _LEAST = 26, 6


def find(given: str) -> str:
    """The id of the job that `given` is the beginning of."""
    given = given.strip().lower()
    if len(given) == WHOLE:
        return given
    if not _LEAST <= len(given) < WHOLE:
        stop(f"a job id has {WHOLE} characters; its beginning has at least {_LEAST}", USAGE)
    found = story.with_prefix(given)
    if not found:
        stop(f"none of the {story.RECENT} newest jobs starts with {given}", NOT_FOUND)
    if len(found) > 1:
        stop(f"{given} is the beginning of several: {', '.join(found[:10])}", USAGE)
    return found[0]


def chosen(job: str | None, request_id: str | None, tenant: str) -> str:
    """The id of the job that is named: by itself or its beginning, or by whose request it was."""
    if job is not None:
        return find(job)
    return job_id(tenant, request_id, "")


def read(job: str) -> Story:
    """The story of a job that must be there."""
    told = story.read(job)
    if told is None:
        stop(f"there is no job {job}", NOT_FOUND)
    return told


def as_data(told: Story) -> dict[str, Any]:
    """A story for machines."""
    tokens_in, tokens_out = told.tokens
    return {
        "job": told.head.model_dump(mode="json"),
        "journal": told.journal,
        "results": [asdict(result) for result in told.results],
        "parts": [asdict(each) for each in told.parts],
        "calls": [
            {"handoff": made.handoff, "attempt": made.attempt, **asdict(made.call)}
            for made in told.calls
        ],
        "effects": told.effects,
        "forms": [form.model_dump(mode="json", exclude={"work"}) for form in told.forms],
        "totals": {
            "calls": len(told.calls),
            "input_tokens": tokens_in,
            "output_tokens": tokens_out,
            "cost_micro": told.cost_micro,
        },
    }


def print_story(told: Story, out: Console) -> None:
    """A story for people."""
    head = told.head
    out.print(Text.assemble(f"job {head.job_id}  ", show.status(head.status), f" at {head.stage}"))
    agent = f", agent {head.agent}" if head.agent else ""
    out.print(
        show.line(
            f"tenant {head.tenant}, flow {head.flow or '-'}{agent}, trace {head.trace_id}", 200
        )
    )
    asked = f"{datetime.fromtimestamp(head.created, UTC):%Y-%m-%d %H:%M:%S}Z"
    out.print(f"asked {asked}, {show.seconds(head.moved - head.created)} until it last moved")
    if head.expired:
        out.print("it ended so long ago that all but this has expired")
    elif head.form:
        out.print(
            show.line(f"waits for a person: stafette answer {head.job_id} --form {head.form}")
        )
    elif not head.status.ended:
        aside = f", put aside {head.waits}x ({head.why})" if head.waits else ""
        out.print(
            show.line(
                f"waits for {head.next}, attempt {head.attempt}, {head.failures} failures{aside}"
            )
        )
    if head.reason:
        out.print(Text(show.ending(head), style="red"))
    _section("journal", show.journal(told), out)
    results = show.grid("handoff", ">attempt", "gave", "value")
    for result in told.results:
        gave = result.model or f"failed: {result.reason}"
        value = result.detail if result.model is None else result.value
        results.add_row(
            result.handoff,
            str(result.attempt),
            show.line(gave if result.won or result.model is None else f"{gave} (lost)"),
            show.line(value, 160),
        )
    _section("results", results, out)
    for sentence in show.joins(told):
        out.print(sentence)
    _section("model calls", show.calls(told.calls), out)
    if told.forms:
        _section("forms", show.forms(told), out)
    _section("effects", show.effects(told), out)


def _section(title: str, body: Table, out: Console) -> None:
    out.print(Text(f"\n{title}", style="bold"), body, sep="\n")
