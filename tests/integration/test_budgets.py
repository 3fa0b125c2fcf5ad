"""Budgets: reserved before a call, settled after it, and a person is asked when they are used up."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from local.model import HangUpError, OfflineModel, Response, error, says
from stafette.agent import guards, models
from stafette.aws import keys, table
from stafette.core.budget import Amount
from stafette.core.errors import (
    BlockedError,
    PermanentError,
    RefusedError,
    StafetteError,
    ThrottledError,
    TransientError,
)
from stafette.core.messages import Request, read_request
from stafette.core.run import Run
from stafette.relay.intake import new_head
from tests.integration.conftest import an_active_job

Make = Callable[..., Any]
LABEL = json.dumps({"category": "card", "urgency": "high", "confidence": 0.9, "reason": "stolen"})
DOLLAR = 1_000_000
# 600,000 tokens of output at $0.50 a million.
THIRTY_CENTS: Any = {"input_tokens": 0, "output_tokens": 600_000}


def costs(usage: dict[str, int] = THIRTY_CENTS) -> Any:
    return says(LABEL, usage=usage)


@pytest.fixture
def dear(agent: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    """An agent each of whose calls costs $0.30, of a budget of $1.00."""
    monkeypatch.setenv("JOB_BUDGET_USD", "1.00")
    patched = models.MODELS["claude-haiku-5-5"]
    price = models.Price(patched.price.input, patched.price.output * 30, patched.price.cache_read)
    monkeypatch.setattr(
        models,
        "MODELS",
        {
            **models.MODELS,
            "claude-haiku-5-5": models.Model(price, patched.bedrock, patched.at_once),
        },
    )
    # 20,000 tokens at $15 a million.
    THIRTY_CENTS["output_tokens"] = 20_000
    return agent("dear", "max_tokens: 20000")


def booked(key: keys.Key | None = None) -> int:
    item = table.get(key or keys.budget("j1")) or {}
    return int(item.get("micro", 0))


def test_req_orch_10_no_call_is_made_that_the_budget_may_not_bear(
    worker: Make, offline: OfflineModel, dear: str
) -> None:
    asking = worker()
    offline.script(costs(), costs(), costs())
    for n in range(3):
        asking.ask(f"Step {n}", agent=dear)
    with pytest.raises(BlockedError) as stopped:
        asking.ask("Step 3", agent=dear)
    form = stopped.value.form
    assert offline.calls == 3
    assert (booked(), form.scope) == (900_000, "job")
    assert (form.facts["cap"], form.facts["spent"]) == (1.0, 0.9)
    assert form.facts["needed for the next call, at most"] > 0.3
    assert table.get(keys.limit("claude-haiku-5-5"))["requests"] == 4  # type: ignore[index]


def four_steps(asking: Any, dear: str) -> None:
    for n in range(4):
        asking.ask(f"Step {n}", agent=dear)


def test_req_orch_10_raised_budget_lets_a_job_go_on_without_paying_twice(
    worker: Make, offline: OfflineModel, dear: str
) -> None:
    offline.script(*[costs()] * 3)
    with pytest.raises(BlockedError) as stopped:
        four_steps(worker(), dear)
    answers = {stopped.value.form.name: {"cap_usd": 1.25}}
    offline.script(costs())
    four_steps(worker(attempt=2, answers=answers), dear)
    assert (offline.calls, booked()) == (4, 1_200_000)
    # Used up again, it is asked for under another name: the first answer raised it once, however often it is read.
    with pytest.raises(BlockedError) as again:
        worker(attempt=2, part=1, answers=answers).ask("Step 5", agent=dear)
    assert again.value.form.name != stopped.value.form.name
    assert again.value.form.facts["cap"] == 1.25


@pytest.mark.parametrize("cap", [1.0, 0])
def test_budget_that_a_person_does_not_raise_ends_the_work(
    worker: Make, offline: OfflineModel, dear: str, cap: float
) -> None:
    offline.script(*[costs()] * 3)
    with pytest.raises(BlockedError) as stopped:
        four_steps(worker(), dear)
    with pytest.raises(PermanentError) as ended:
        four_steps(worker(attempt=2, answers={stopped.value.form.name: {"cap_usd": cap}}), dear)
    assert (ended.value.reason, offline.calls) == ("budget_exhausted", 3)


NEED = Amount(400_000, 10)


def held(run: Run, n: int = 1) -> guards.Entered:
    return guards.enter(run, "claude-haiku-5-5", n, NEED)


def test_no_room_because_of_what_others_hold_waits_and_their_settling_makes_room(
    worker: Make, offline: OfflineModel, dear: str
) -> None:
    first, second = held(worker().run), held(worker(part=1).run)
    with pytest.raises(ThrottledError) as waits:
        held(worker(part=2).run)
    assert waits.value.reason == "budget_held"
    assert 0 < waits.value.wait <= 10
    guards.leave(first, Amount(1000, 1), None)
    third = held(worker(part=2).run)
    assert booked() == 1000 + 2 * 400_000
    for each in (second, third):
        guards.leave(each, Amount(), None)
    assert booked() == 1000


def test_reservation_of_the_dead_is_settled_in_full(
    worker: Make, offline: OfflineModel, dear: str, passing: Any
) -> None:
    for n in (1, 2):
        held(worker(part=n).run)
    passing.pass_by(61)
    with pytest.raises(BlockedError) as stopped:
        held(worker(part=3).run)
    assert stopped.value.form.facts["spent"] == 0.8


def test_settled_twice_is_settled_once(worker: Make, offline: OfflineModel, dear: str) -> None:
    one = held(worker().run)
    for _ in range(2):
        guards.leave(one, Amount(1000, 1), None)
    assert booked() == 1000


@pytest.mark.parametrize(
    ("step", "paid"),
    [
        (error(429, "rate_limit_error", {"retry-after": "1"}), False),
        (error(400, "invalid_request_error"), False),
        (error(500, "api_error"), True),
        (Response(b"not JSON"), True),
    ],
    ids=["429", "400", "500", "unreadable"],
)
def test_call_that_may_have_been_billed_is_settled_in_full_and_one_that_was_refused_is_not(
    worker: Make, offline: OfflineModel, dear: str, step: Any, paid: bool
) -> None:
    offline.script(step)
    with pytest.raises(StafetteError):
        worker().ask(agent=dear)
    assert (booked() > 300_000) if paid else booked() == 0


def test_connection_that_ends_without_an_answer_is_settled_in_full(
    worker: Make, offline: OfflineModel, dear: str
) -> None:
    def hang_up(phase: str, request: Any) -> None:
        raise HangUpError

    offline.observe(hang_up)
    with pytest.raises(TransientError):
        worker().ask(agent=dear)
    assert booked() > 300_000


def test_tokens_have_a_cap_of_their_own(
    worker: Make, offline: OfflineModel, dear: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_BUDGET_USD", "0")
    monkeypatch.setenv("JOB_BUDGET_TOKENS", "50000")
    offline.script(costs(), costs())
    asking = worker()
    asking.ask("one", agent=dear)
    asking.ask("two", agent=dear)
    with pytest.raises(BlockedError) as stopped:
        asking.ask("three", agent=dear)
    assert stopped.value.form.facts["unit"] == "tokens"
    answers = {stopped.value.form.name: {"cap_tokens": 90_000}}
    offline.script(costs())
    worker(attempt=2, part=3, answers=answers).ask("more", agent=dear)
    assert offline.unused == 0


def test_tenant_has_a_budget_over_all_of_its_jobs_and_a_month(
    worker: Make, offline: OfflineModel, dear: str, monkeypatch: pytest.MonkeyPatch, passing: Any
) -> None:
    table.put(keys.head("j2"), an_active_job("j2"))
    monkeypatch.setenv("TENANT_BUDGET_USD", "0.70")
    offline.script(costs(), costs())
    for job in ("j1", "j2"):
        worker(job=job).ask(agent=dear)
    with pytest.raises(BlockedError) as stopped:
        worker(job="j2", part=1).ask(agent=dear)
    assert stopped.value.form.facts["cap"] == 0.7
    assert "acme" in stopped.value.form.question
    # What a person answers to one job is the tenant's cap for all of them.
    offline.script(costs(), costs())
    answers = {stopped.value.form.name: {"cap_usd": 1.4}}
    worker(job="j2", part=2, answers=answers).ask(agent=dear)
    worker(job="j1", part=3).ask(agent=dear)
    # The next month is another budget.
    offline.script(costs())
    passing.pass_by(32 * 86_400)
    worker(job="j2", part=4).ask(agent=dear)


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        ("cancelled", TransientError, "job_not_active"),
        ("failed", TransientError, "job_not_active"),
        ("blocked", ThrottledError, "job_blocked"),
    ],
)
def test_nothing_is_asked_for_a_job_that_is_not_active(
    worker: Make, offline: OfflineModel, status: str, kind: type[StafetteError], reason: str
) -> None:
    asking = worker()
    table.update(keys.head("j1"), sets={"status": status})
    with pytest.raises(kind) as refused:
        asking.ask()
    assert (refused.value.reason, offline.calls, asking.calls()) == (reason, 0, [])


def test_request_may_give_its_job_a_budget_of_its_own(
    worker: Make, offline: OfflineModel, dear: str
) -> None:
    request = Request.model_validate(
        {"input": {}, "request_id": "r", "budget": {"usd": 0.61, "tokens": 50_000}}
    )
    head = new_head(request, "m", "route", 0.0)
    assert (head.cap_micro, head.cap_tokens) == (610_000, 50_000)
    table.update(keys.head("j1"), sets={"cap_micro": head.cap_micro})
    offline.script(costs())
    asking = worker()
    asking.ask("one", agent=dear)
    offline.script(costs())
    asking.ask("two", agent=dear)
    with pytest.raises(BlockedError) as stopped:
        asking.ask("three", agent=dear)
    assert stopped.value.form.facts["cap"] == 0.61


@pytest.mark.parametrize(
    "budget", [{"usd": -1}, {"usd": "1"}, {"tokens": 1.5}, {"dollars": 1}, 5], ids=str
)
def test_budget_of_a_request_that_is_none_is_refused_by_its_field(budget: Any) -> None:
    with pytest.raises(RefusedError, match="budget"):
        read_request({"v": 1, "kind": "request", "input": {}, "budget": budget})
