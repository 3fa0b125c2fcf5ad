"""`python -m local.demo`: one ticket from start to end on this machine, and then the same message once more."""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.rule import Rule

from local import show, story
from local.clock import RealClock
from local.functions import model_access
from local.machine import Machine
from local.model import serve_model
from local.serve import settings_of
from local.story import Story
from stafette.core.messages import job_id

EVENTS = Path(__file__).resolve().parent.parent / "events"
TICKET = EVENTS / "ticket.json"
OWN_MODEL = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL_BASE_URL")
# Seconds that the offline model takes for each answer, so that there is something to watch.
LATENCY = 0.2
SILENT = {"POWERTOOLS_LOG_LEVEL": "CRITICAL", "POWERTOOLS_METRICS_DISABLED": "true"}
_OFFLINE = (
    "Model: offline. It answers by fixed rules after 0.2 s; it is not a language model. "
    "Costs are what its tokens would cost at list price; nothing is billed."
)


def own_model(environment: Mapping[str, str]) -> str | None:
    """The variable by which an environment names a model; None: the offline one answers."""
    return next((name for name in OWN_MODEL if environment.get(name)), None)


@contextmanager
def running(environment: Mapping[str, str], console: Console) -> Iterator[Machine]:
    """A machine that works by itself, with the model that the environment names, else the offline one."""
    access = model_access(environment)
    with ExitStack() as stack:
        if own := own_model(environment):
            where = access.get("MODEL_BASE_URL") or access.get("ANTHROPIC_BASE_URL")
            console.print(f"Model: {where or 'the Anthropic API'}, because {own} is set.")
        else:
            model = stack.enter_context(serve_model(LATENCY))
            access |= {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
            console.print(_OFFLINE)
        machine = stack.enter_context(
            Machine(clock=RealClock(), model_access=access, environment=SILENT)
        )
        # What reads here is no function: it is told of the stack what a function is told.
        stack.enter_context(patch.dict(os.environ, {**settings_of(machine), **SILENT}))
        machine.start()
        yield machine


def event(text: str | None) -> dict[str, Any]:
    """The sample ticket, with another text if one is given."""
    sample: dict[str, Any] = json.loads(TICKET.read_text(encoding="utf-8"))
    if text:
        sample["input"]["text"] = text
    return sample


def send(machine: Machine, body: str) -> None:
    """Puts a message on the queue, as anybody would."""
    machine.client("sqs").send_message(
        QueueUrl=machine.queue_url("intake"), MessageBody=body, MessageGroupId="demo"
    )


def run(text: str | None, environment: Mapping[str, str], console: Console) -> int:
    """Shows the run. Returns the exit code."""
    sample = event(text)
    body, job = json.dumps(sample), job_id(sample["tenant"], sample["request_id"], "")
    with running(environment, console) as machine:
        console.print(f"\nTicket: {show.line(sample['input']['text'], 300)}")
        console.print(f"Job:    {job}\n")
        send(machine, body)
        told = show.follow(job, console, deadline=120, every=0.05)
        if told is None or told.head.status != "done":
            console.print(f"\nThe job did not get done. {_why(machine, told)}")
            return 1
        machine.wait_until_quiet(20)  # the notice of its end is still to go out
        _show_result(story.read(job) or told, console)
        return 0 if _once_more(machine, body, job, console) else 1


def _show_result(told: Story, console: Console) -> None:
    labels, draft = told.value("Classified"), told.value("Draft")
    enriched = told.value("Enriched")
    console.print(Rule("Labels", align="left"))
    console.print(
        show.line(
            f"category {labels['category']}, urgency {labels['urgency']}, "
            f"confidence {labels['confidence']}"
        )
    )
    console.print(Rule("Join of the parts, in their order", align="left"))
    console.print(f"{enriched['read']} records read, {enriched['failed']} could not be")
    for finding in enriched["findings"]:
        console.print(f"  {show.line(finding['record'], 40)}: {show.line(finding['summary'], 160)}")
    console.print(Rule("Reply", align="left"))
    console.print(show.clean(draft["subject"]) + "\n\n" + show.clean(draft["body"]))
    console.print(Rule("Trace: the stages", align="left"))
    console.print(show.journal(told))
    console.print(Rule("Trace: the model calls", align="left"))
    console.print(show.calls(told.calls))
    console.print(Rule("Effects, each done once", align="left"))
    console.print(show.effects(told))


def _once_more(machine: Machine, body: str, job: str, console: Console) -> bool:
    """Sends the same message again and compares what there is before and afterwards."""
    console.print(Rule("The same message once more", align="left"))
    before = _counts(machine, job)
    send(machine, body)
    quiet = machine.wait_until_quiet(20)
    after = _counts(machine, job)
    table = show.grid("", *(f">{name}" for name in before))
    table.add_row("after the first", *map(str, before.values()))
    table.add_row("after the second", *map(str, after.values()))
    console.print(table)
    same = quiet and after == before
    console.print("Nothing ran twice." if same else "Something ran twice: that is a bug.")
    return same


def _counts(machine: Machine, job: str) -> dict[str, int]:
    """How much there is of everything that must not be there twice."""
    told = story.read(job)
    heads = machine.client("dynamodb").scan(
        TableName=machine.table,
        FilterExpression="sk = :job",
        ExpressionAttributeValues={":job": {"S": "JOB"}},
    )
    outbox = machine.client("s3").list_objects_v2(Bucket=machine.bucket, Prefix="outbox/")
    return {
        "jobs": heads["Count"],
        "model calls": len(told.calls) if told else 0,
        "effects": len(told.effects) if told else 0,
        "letters in the outbox": outbox["KeyCount"],
        "notices": len(machine.published),
        "journal entries": len(told.journal) if told else 0,
    }


def _why(machine: Machine, told: Story | None) -> str:
    if told is not None and told.head.status.ended:
        return show.ending(told.head)
    if machine.failures:
        return f"The last error was {show.line(machine.failures[-1].error or '', 400)}"
    return "It is still under way." if told else "It never started: was the message refused?"


def main() -> int:
    """The command. TICKET in the environment is the text, where no option gives it."""
    parser = argparse.ArgumentParser(prog="python -m local.demo", description=__doc__)
    parser.add_argument("--text", help="text of the ticket, in place of the sample's")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    began = time.monotonic()
    code = run(given.text or os.environ.get("TICKET"), os.environ, console)
    console.print(f"\n{time.monotonic() - began:.1f} s in all")
    return code


if __name__ == "__main__":
    sys.exit(main())
