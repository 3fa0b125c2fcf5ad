"""What people are asked: to raise a budget, and whether an effect in doubt was done. The whole way, on one machine."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from stafette.aws.effects import GRACE
from tests.support import Json, Stack, job_of, running_stack, ticket
from tools import outbox

RECORDS = 12


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "REPLY", replace(outbox.REPLY, in_doubt="ask"))
        with running_stack() as running:
            yield running


@pytest.fixture(autouse=True)
def an_hour_later(stack: Stack) -> None:
    """No answer that an earlier test was given is known any more."""
    stack.machine.clock.advance_to(stack.machine.clock.now() + 3_600)


def open_forms(stack: Stack, job_id: str) -> list[Json]:
    items = stack.partition(f"JOB#{job_id}")
    return [item for item in items if item["sk"].startswith("FORM#") and item["state"] == "open"]


def answer(stack: Stack, job_id: str, form: Json, value: Json) -> None:
    stack.send("answer", {"job_id": job_id, "form": form["id"], "answer": value, "by": "anna"})
    stack.machine.run_until_quiet(limit=20_000)


@pytest.mark.parametrize(
    ("budget", "stage", "raised"),
    [
        ({"usd": 0.000001}, "received", {"cap_usd": 5}),
        ({"tokens": 5_500}, "enriching", {"cap_tokens": 1_000_000}),
        ({"usd": 0.01}, "enriched", {"cap_usd": 5}),
    ],
    ids=["before the first call", "in the middle of a fan-out", "before the last call"],
)
def test_a_job_whose_budget_is_used_up_asks_once_and_goes_on_without_paying_twice(
    stack: Stack, budget: Json, stage: str, raised: Json
) -> None:
    body = ticket(f"budget-{stage}", RECORDS) | {"budget": budget}
    asked = stack.model.calls
    stack.send("intake", body)
    stack.machine.run_until_quiet(limit=20_000)
    job_id = job_of(f"budget-{stage}")
    head, booked = stack.head(job_id), stack.item(f"JOB#{job_id}", "BUDGET") or {}
    assert (head["status"], head["stage"]) == ("blocked", stage)
    assert booked.get("micro", 0) <= budget.get("usd", 1) * 1_000_000
    assert booked.get("tokens", 0) <= budget.get("tokens", 1_000_000)
    [form] = open_forms(stack, job_id)
    assert form["scope"] == "job"
    answer(stack, job_id, form, raised)
    assert stack.head(job_id)["status"] == "done"
    assert stack.model.calls - asked == RECORDS + 2
    assert open_forms(stack, job_id) == stack.dead() == []
    assert stack.machine.backlog() == {}


@pytest.mark.parametrize("done", [True, False])
def test_a_person_says_whether_an_effect_in_doubt_was_done(stack: Stack, done: bool) -> None:
    job_id = stack.ask(f"doubt-{done}", 0)
    phase: Any = "after" if done else "before"
    with stack.dying_at(
        lambda call: call.function == "act" and call.operation == "PutObject", phase
    ):
        stack.machine.run_until_quiet()
    stack.machine.clock.advance(400 + GRACE)
    stack.machine.run_until_quiet()
    [form] = open_forms(stack, job_id)
    assert stack.head(job_id)["status"] == "blocked"
    assert form["name"].startswith("effect.send_reply")
    key = f"outbox/{job_id}/send_reply.json"
    value = {"done": True, "result": {"key": key}} if done else {"done": False}
    answer(stack, job_id, form, value)
    assert stack.head(job_id)["status"] == "done"
    assert stack.took_effect(job_id)[key] == 1
    assert open_forms(stack, job_id) == []
