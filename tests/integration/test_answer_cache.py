"""The same question is asked once for as long as its agent's file says; what may not be used is not given again."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from local.model import OfflineModel, error, says
from stafette.aws import keys, table
from stafette.core.errors import StafetteError

Make = Callable[..., Any]
GOOD = {"category": "card", "urgency": "high", "confidence": 0.9, "reason": "stolen"}
HOUR = "cache: 3600"


def label(**changes: Any) -> Any:
    usage = {"input_tokens": 1000, "output_tokens": 100}
    return says(json.dumps({**GOOD, **changes}), usage=usage)


@pytest.fixture
def cached(agent: Callable[..., str]) -> str:
    return agent(more=HOUR)


def test_same_question_is_answered_without_a_call_and_the_saving_is_recorded(
    worker: Make, offline: OfflineModel, cached: str
) -> None:
    offline.script(label(reason="first"))
    first = worker(part=1).ask(agent=cached)
    second = worker(part=2)
    assert second.ask(agent=cached) == first
    assert offline.calls == 1
    call, hit = second.calls()
    assert (hit["cache"], hit["saved_micro"], hit["cost_micro"]) == ("hit", call["cost_micro"], 0)
    assert (hit["outcome"], hit["usage_incomplete"]) == ("ok", False)
    assert call["cost_micro"] == 150
    assert "cache" not in call


def test_hit_uses_neither_limit_nor_budget(
    worker: Make, offline: OfflineModel, cached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(part=1).ask(agent=cached)
    before = table.get(keys.budget("j1")), table.get(keys.limit("claude-haiku-5-5"))
    monkeypatch.setenv("JOB_BUDGET_USD", "0.000001")
    worker(part=2).ask(agent=cached)
    assert before == (table.get(keys.budget("j1")), table.get(keys.limit("claude-haiku-5-5")))


def test_time_to_live_is_that_of_the_clock_not_of_the_table(
    worker: Make, offline: OfflineModel, cached: str, passing: Any
) -> None:
    worker(part=1).ask(agent=cached)
    passing.pass_by(3590)
    worker(part=2).ask(agent=cached)
    assert offline.calls == 1
    passing.pass_by(11)
    worker(part=3).ask(agent=cached)
    assert offline.calls == 2


def test_other_tenant_other_input_other_file_are_other_questions(
    worker: Make, offline: OfflineModel, agent: Callable[..., str]
) -> None:
    name = agent(more=HOUR)
    pk, sk = keys.head("k1")
    table.put((pk, sk), {**(table.get(keys.head("j1")) or {}), "pk": pk, "sk": sk, "job_id": "k1"})
    worker(part=1).ask("a", agent=name)
    worker(part=2).ask("b", agent=name)
    worker(job="k1", tenant="umbrella").ask("a", agent=name)
    assert offline.calls == 3
    worker(part=3).ask("a", agent=agent(more="cache: 3600\nmax_tokens: 501"))
    assert offline.calls == 4


def test_agent_without_a_cache_is_asked_each_time(
    worker: Make, offline: OfflineModel, agent: Callable[..., str]
) -> None:
    for n in range(2):
        worker(part=n).ask(agent=agent(more="max_tokens: 400"))
    assert offline.calls == 2


@pytest.mark.parametrize(
    "step",
    [error(500, "api_error"), says([], "refusal"), says("half", "max_tokens")],
    ids=["failure", "refusal", "cut"],
)
def test_what_failed_is_asked_again(
    worker: Make, offline: OfflineModel, cached: str, step: Any
) -> None:
    offline.script(step)
    with pytest.raises(StafetteError):
        worker(part=1).ask(agent=cached)
    worker(part=2).ask(agent=cached)
    assert offline.calls == 2


def test_low_confidence_is_not_kept_but_the_answer_that_passed_is(
    worker: Make, offline: OfflineModel, agent: Callable[..., str]
) -> None:
    name = agent(more="cache: 3600\nconfidence: 0.6")
    offline.script(label(confidence=0.2), label(reason="sure"))
    worker(part=1).ask(agent=name)
    assert worker(part=2).ask(agent=name).reason == "sure"
    assert offline.calls == 2


def test_answer_that_todays_check_would_not_take_is_asked_for_again(
    worker: Make, offline: OfflineModel, cached: str
) -> None:
    offline.script(label(), label(category="fees"))
    worker(part=1).ask(agent=cached)
    check = lambda value: "no cards" if value.category == "card" else None  # noqa: E731
    assert worker(part=2).ask(agent=cached, check=check).category == "fees"
