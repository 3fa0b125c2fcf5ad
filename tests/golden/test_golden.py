"""A deploy may come at any moment: the code of today finishes what earlier versions stored and sent.

* Each recording under tests/golden/v*/ is put on an empty machine, an hour later, and run until nothing moves.
* A recording from which something is missing does not end so: the check can fail.
* What a newer version wrote waits as a dead record, counted for the alarm, and is finished after the upgrade.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local.clock import VirtualClock
from local.prove.course import START
from stafette.aws import keys
from stafette.core import decide, job, messages
from stafette.relay import recovery
from tests.support import Stack, running_stack
from tools import outbox

HERE = Path(__file__).resolve().parent
RECORDINGS = sorted(HERE.glob("v*/*.json"))
JOB = messages.job_id("acme", "ticket-1002", "")
JOURNAL = ("intake", "route", "classify", "enrich", "enrich:join", "draft", "act")
# What the journal of a job that failed has besides: its end, and that it was opened again.
REOPENED = {"failed": {"EVENT#job#0001", "EVENT#job#0002"}}
Json = dict[str, Any]


def recording(name: str) -> Json:
    held: Json = json.loads((HERE / name).read_text())
    return held


@contextmanager
def deployed(held: Json, **options: Any) -> Iterator[Stack]:
    """A machine that holds a recording, one hour after it was made."""
    with running_stack(clock=VirtualClock(START + held["now"] + 3600), **options) as stack:
        machine = stack.machine
        for item in held["items"]:
            machine.client("dynamodb").put_item(TableName=machine.table, Item=item)
        for key, body in held["objects"].items():
            machine.client("s3").put_object(Bucket=machine.bucket, Key=key, Body=body.encode())
        for queue, bodies in held["messages"].items():
            for body in bodies:
                stack.send(queue, body)
        yield stack


def ended(held: Json) -> str | None:
    """How the job of a recording ended, if it has."""
    heads = [item for item in held["items"] if item["sk"]["S"] == "JOB"]
    return next((head["status"]["S"] for head in heads if "ended" in head), None)


def finished(stack: Stack, held: Json) -> bool:
    """Whether the job of a recording is done, whole, and nothing was done that had been done before."""
    ending = stack.ending(JOB)
    return (
        (ending.stage, ending.status, ending.waits) == ("acted", "done", False)
        and {f"EVENT#{name}#0001" for name in JOURNAL} | REOPENED.get(ended(held), set())
        == ending.journal.keys()
        and set(ending.outbox) == {"send_reply.json", "open_follow_up.json"}
        and ending.joins == {"enrich": (1, 0, (0,)), "enrich#000": (3, 0, (0, 1, 2))}
        and len(ending.parts) == 3
        and stack.machine.backlog() == {}
        and stack.dead() == []
        and not set(stack.took_effect(JOB)) & set(held["objects"])
        and all(times == 1 for times in stack.took_effect(JOB).values())
    )


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_an_earlier_version_left_is_finished(path: Path) -> None:
    held = json.loads(path.read_text())
    with deployed(held) as stack:
        stack.machine.run_until_quiet()
        if ended(held) == "failed":
            assert stack.head(JOB)["status"] == "failed"
            with stack.machine.inside("bury"):
                assert recovery.reopen(JOB) is not None
            stack.machine.run_until_quiet()
        assert finished(stack, held), (stack.ending(JOB), stack.dead(), stack.machine.backlog())
        effects = {sk for sk in stack.ending(JOB).effects if "notify" not in sk}
        assert effects == {"EFFECT#send_reply", "EFFECT#open_follow_up"}


def test_the_key_of_an_effect_holds_no_name_that_a_refactoring_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recorded act sent the reply. Today the same effect is another function of another module."""
    held = recording("v1/act-cut-off-before-its-result.json")

    def moved(key: str, what: Any) -> Any:
        raise AssertionError("it took place already")

    moved.__module__, moved.__qualname__ = "elsewhere", "Mailer.deliver"
    monkeypatch.setattr(outbox, "REPLY", replace(outbox.REPLY, act=moved, in_doubt="ask"))
    monkeypatch.setattr(outbox, "FOLLOW_UP", replace(outbox.FOLLOW_UP, act=moved, in_doubt="ask"))
    known = {("JOB#" + JOB, "EFFECT#send_reply"), ("JOB#" + JOB, "EFFECT#open_follow_up")}
    recorded = {(item["pk"]["S"], item["sk"]["S"]) for item in held["items"]}
    assert {keys.effect(JOB, e.name) for e in (outbox.REPLY, outbox.FOLLOW_UP)} == known
    assert known <= recorded
    with deployed(held) as stack:
        stack.machine.run_until_quiet()
        assert finished(stack, held), stack.ending(JOB)


def test_every_stage_is_recorded_for_every_version() -> None:
    for version in range(1, messages.VERSION + 1):
        held = [
            json.loads(path.read_text()) for path in RECORDINGS if path.parent.name == f"v{version}"
        ]
        heads = [item for each in held for item in each["items"] if item["sk"]["S"] == "JOB"]
        stages = {"asked", "received", "classified", "enriching", "enriched", "drafted", "acted"}
        assert {head["stage"]["S"] for head in heads} == stages
        waits = {name for head in heads for name in ("not_before", "wake") if head.get(name)}
        assert waits == {"not_before", "wake"}
        assert {head["status"]["S"] for head in heads} == {"active", "done", "failed"}
        kinds = {
            m["kind"]
            for each in held
            for found in each["messages"].values()
            for m in found
            if "kind" in m
        }
        assert kinds >= {"handoff", "range", "part", "notice"}


@pytest.mark.parametrize("lacks", ["messages", "RESULT#route#0001", "PART#00001"])
def test_a_recording_that_lacks_something_is_not_finished(lacks: str) -> None:
    held = recording("v1/07-enrich.json")
    held["items"] = [item for item in held["items"] if item["sk"]["S"] != lacks]
    held["messages"] = {} if lacks == "messages" else held["messages"]
    with deployed(held) as stack:
        stack.machine.run_until_quiet()
        assert not finished(stack, held)


def newer(held: Json) -> None:
    """A message as the next version would write it."""
    for bodies in held["messages"].values():
        for body in bodies:
            body |= {"v": messages.VERSION + 1, "unheard_of": True}


def newer_head(held: Json) -> None:
    """A head as the next version would write it."""
    [head] = [item for item in held["items"] if item["sk"]["S"] == "JOB"]
    head["v"] = {"N": str(job.VERSION + 1)}


def upgrade(patch: pytest.MonkeyPatch) -> None:
    """The deploy of the version that wrote it."""
    patch.setattr(messages, "VERSION", messages.VERSION + 1)
    patch.setattr(job, "VERSION", job.VERSION + 1)
    patch.setattr(decide, "VERSION", job.VERSION)


@pytest.mark.parametrize("written", [newer, newer_head])
@pytest.mark.parametrize("name", ["01-route", "07-enrich", "09-act"])
def test_what_a_newer_version_wrote_waits_with_an_alarm_and_is_finished_after_the_upgrade(
    written: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = recording(f"v1/{name}.json")
    written(held)
    with deployed(held) as stack:
        before = stack.item(*keys.head(JOB))
        stack.machine.run_until_quiet()
        [record] = stack.dead()
        assert record["reason"] == "unknown_version"
        assert '"DeadRecords":[1.0]' in capsys.readouterr().out.replace(" ", "")
        assert stack.item(*keys.head(JOB)) == before
        upgrade(monkeypatch)
        with stack.machine.inside("bury"):
            assert recovery.redrive(record["id"]) == "sent"
        stack.machine.run_until_quiet()
        assert finished(stack, held), (stack.ending(JOB), stack.dead())


def test_sweep_leaves_a_head_of_a_newer_version_as_it_is() -> None:
    held = recording("v1/07-enrich.json")
    held["messages"] = {}
    newer_head(held)
    with deployed(held) as stack:
        before = stack.item(*keys.head(JOB))
        for hours in (1, 23, 24):  # beyond its deadline
            stack.machine.clock.advance_to(stack.machine.clock.now() + hours * 3600)
            stack.machine.run_schedules()
            stack.machine.run_until_quiet()
        assert stack.item(*keys.head(JOB)) == before
        assert stack.machine.backlog() == {}
