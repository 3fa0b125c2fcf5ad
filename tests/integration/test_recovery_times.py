"""How long a job stands still when a worker dies or a message is lost, on the injected clock, with sweep each minute.

docs/failure-modes.md states these times; here each is what the template says, plus at most one look of sweep.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from local import machine, template
from stafette.core.job import FIRST_LOOK, SOON
from tests.support import Stack, running_stack

SWEEP = 60
# What a try takes on a clock that only waiting moves, and the second that a timeout is rounded by.
SLACK = 2
LONG, LONG_HIDDEN = 900, 5_400

WORKERS = ("route", "classify", "enrich", "enrich_record", "draft", "act", "notify")


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


def killed_at(stack: Stack, function: str) -> float:
    """Kills the worker of a function after its first call, by which it has taken the work. When that was."""
    with stack.dying_at(lambda call: call.function == function, "after"):
        while not stack.machine.crashes:
            stack.machine.step()
    stack.machine.outcomes.clear()
    return stack.machine.clock.now()


def gone_on(stack: Stack, job_id: str, since: float) -> float:
    """Seconds until the job has ended and everything was told. Nothing but the fault makes it wait."""
    for _ in range(3 * LONG_HIDDEN // SWEEP):
        stack.machine.run_for(SWEEP / 6)
        if stack.head(job_id)["status"] == "done" and stack.notices(job_id):
            return stack.machine.clock.now() - since
    raise AssertionError("it stands still")


@pytest.mark.parametrize("function", WORKERS)
def test_a_killed_worker_is_made_up_for_when_its_message_is_shown_again(
    stack: Stack, function: str
) -> None:
    hidden = int(stack.machine.queue(function).attributes["VisibilityTimeout"])
    assert hidden == 6 * stack.machine.function(function).timeout <= 6 * SOON
    job_id = stack.ask(f"killed-{function}", 1)
    took = gone_on(stack, job_id, killed_at(stack, function))
    assert hidden - SLACK <= took <= hidden + SWEEP / 6 + SLACK


def test_a_lost_message_is_made_up_for_at_the_first_look_of_sweep(stack: Stack) -> None:
    job_id = stack.ask("lost", 1)
    began = stack.machine.clock.now()
    stack.run_until(lambda: stack.machine.queue("draft").logical_id in stack.machine.backlog())
    assert stack.take_away("draft")
    assert FIRST_LOOK <= gone_on(stack, job_id, began) <= FIRST_LOOK + SWEEP + SWEEP / 6 + SLACK


@contextmanager
def long_stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """The stack with a draft that may take fifteen minutes, and with a queue that hides its messages accordingly."""
    text = machine.TEMPLATE.read_text()
    for old, new in (
        (
            "      CodeUri: functions/draft/\n      Timeout: 90",
            "      CodeUri: functions/draft/\n      Timeout: 900",
        ),
        ("VisibilityTimeout: 540", f"VisibilityTimeout: {LONG_HIDDEN}"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)

    def load(path: Path, parameters: Any) -> template.Template:
        return template._load(text, path.resolve().parent, ())

    monkeypatch.setattr("local.machine.load", load)
    with running_stack() as running:
        assert running.machine.function("draft").timeout == LONG
        yield running


def test_a_killed_worker_of_a_long_function_is_made_up_for_when_its_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with long_stack(monkeypatch) as stack:
        job_id = stack.ask("long", 1)
        took = gone_on(stack, job_id, killed_at(stack, "draft"))
        assert LONG - SLACK <= took <= LONG + SWEEP + SWEEP / 6 + SLACK
        # The message that was hidden for so long comes back to a job that is done: nothing follows from it.
        told = len(stack.machine.published)
        stack.machine.run_for(LONG_HIDDEN)
        assert (stack.machine.backlog(), len(stack.machine.published)) == ({}, told)
        assert stack.dead(job_id) == []


def test_a_healthy_worker_of_a_long_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with long_stack(monkeypatch) as stack:
        job_id = stack.ask("healthy", 1)
        stack.machine.run_for(2 * LONG)
        assert stack.head(job_id)["status"] == "done"
        assert stack.model.calls == 3
        assert "due" not in stack.head(job_id)
