"""The trace of jobs in every state that a job can be in, out of the records that they really leave."""

import os
from collections.abc import Iterator
from io import StringIO
from unittest.mock import patch

import pytest
from rich.console import Console

from local import traces, waterfall
from local.model import error, says
from local.serve import settings_of
from local.spans import Span, Trace
from stafette import clock
from stafette.core.job import MOST_FAILURES
from stafette.relay import recovery
from tests.support import Stack, running_stack

SILENT = {"POWERTOOLS_LOG_LEVEL": "CRITICAL", "POWERTOOLS_METRICS_DISABLED": "true"}


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack(environment=SILENT) as running:
        with patch.dict(os.environ, {**settings_of(running.machine), **SILENT}):
            yield running


def traced(job_id: str, *, every_part: bool = False) -> Trace:
    """The trace, which has to print and to be data whatever it holds."""
    told = traces.read(job_id, clock.now(), every_part=every_part)
    assert told is not None
    lines = [line.text for line in waterfall.lines(told, 140)]
    assert len(lines) >= 2
    Console(file=StringIO()).print(*lines, *waterfall.totals(told))
    assert told.as_data()["totals"]["cost_micro"] == told.usage.cost_micro
    return told


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def of(told: Trace, name: str) -> Span:
    return next(span for span in told.spans if span.name == name)


def text(told: Trace) -> str:
    return "\n".join(line.text for line in waterfall.lines(told, 200))


def stage_of(stack: Stack, job_id: str) -> str:
    return str((stack.item(f"JOB#{job_id}", "JOB") or {}).get("stage"))


def test_finished_job_shows_stages_parts_calls_and_effects_in_their_order(stack: Stack) -> None:
    job_id = stack.run("done", 3)
    told = traced(job_id)
    assert names(told.spans) == [
        *("route", "classify", "enrich", "enrich, 3 parts", "enrich:join", "draft", "act"),
    ]
    assert [span.attempt for span in told.spans if span.kind == "stage"] == [1] * 6
    assert names(of(told, "enrich, 3 parts").children) == [f"enrich:0000{n}" for n in range(3)]
    assert names(of(told, "classify").children) == ["classifier"]
    assert names(of(told, "act").children) == ["open_follow_up", "send_reply"]
    assert told.usage.calls == stack.model.calls == 5
    data = told.as_data()
    call = data["spans"][1]["children"][0]
    assert call["attributes"]["gen_ai.request.model"] == "claude-haiku-5-5"
    assert call["attributes"]["gen_ai.usage.input_tokens"] > 0
    assert call["attributes"]["stafette.cost_micro"] == call["usage"]["cost_micro"]
    assert data["status"] == "done"
    assert data["ended"] >= data["began"]


def test_many_parts_are_folded_unless_all_are_asked_for(stack: Stack) -> None:
    job_id = stack.run("wide", 110)
    folded, whole = traced(job_id), traced(job_id, every_part=True)
    assert len(of(folded, "enrich, 110 parts").children) == traces.KEPT
    assert "105 more not shown" in text(folded)
    assert names(of(whole, "enrich, 110 parts").children) == [f"enrich:{n:05d}" for n in range(110)]
    assert folded.usage.as_data() == whole.usage.as_data()
    assert folded.usage.calls == stack.model.calls
    assert folded.spent == whole.spent


def test_job_that_waits_for_its_parts_says_how_many_are_open(stack: Stack) -> None:
    job_id = stack.ask("half", 12)
    stack.run_until(lambda: stage_of(stack, job_id) == "enriching")
    told = traced(job_id)
    assert names(told.spans)[-1] == "enrich, 12 parts"
    assert "0 of 12 done, 12 open" in text(told)
    stack.run_until(lambda: len(stack.partition(f"JOB#{job_id}#enrich#000")) > 3)
    assert of(traced(job_id), "enrich, 12 parts").ended is None
    stack.machine.run_until_quiet()
    assert of(traced(job_id), "enrich, 12 parts").ended is not None


def test_wait_for_a_model_is_told_apart_from_the_queue(stack: Stack) -> None:
    stack.model.script(error(429, "rate_limit_error", {"retry-after": "40"}))
    job_id = stack.run("throttled", 0)
    told = traced(job_id)
    classify = of(told, "classify")
    assert classify.spent("wait") >= 40
    assert classify.spent("queue") < 5
    assert classify.attempt == 2
    assert "put aside 1x (rate_limited)" in classify.about
    assert [span.outcome for span in classify.children] == ["rate_limited", "ok"]
    assert of(told, "draft").about == ""  # that was another stage's wait


def test_part_that_waits_is_told_apart_too(stack: Stack) -> None:
    stack.run("before", 0)
    stack.model.script(
        says('{"category": "card", "urgency": "low", "confidence": 0.9, "reason": "x"}'),
        error(429, "rate_limit_error", {"retry-after": "40"}),
    )
    job_id = stack.run("part", 1)
    [part] = of(traced(job_id), "enrich, 1 parts").children
    assert part.spent("wait") >= 40
    assert "put aside 1x" in part.about


def test_call_that_a_dead_worker_left_behind_may_have_been_billed(stack: Stack) -> None:
    with stack.dying_at(
        lambda call: (
            call.function == "classify"
            and call.operation == "UpdateItem"
            and call.parameters["Key"]["sk"]["S"].startswith("CALL#")
        ),
        "before",
    ):
        job_id = stack.run("killed", 0)
    told = traced(job_id)
    classify = of(told, "classify")
    assert (classify.attempt, classify.outcome) == (2, "done")
    assert [span.outcome for span in classify.children] == ["never settled", "ok"]
    assert told.usage.unsettled == 1
    assert "never settled, may have been billed" in text(told)
    assert any("may have been billed beyond that" in line for line in waterfall.totals(told))


def test_worker_that_died_before_it_left_word_is_a_loss_of_time(stack: Stack) -> None:
    with stack.dying("classify", 1, "after"):
        job_id = stack.run("silent", 0)
    classify = of(traced(job_id), "classify")
    assert classify.spent("lost") > 0
    assert classify.spent("queue") == 0
    assert "1x no word" in classify.about


def test_job_that_waits_for_a_person_says_so_and_since_when(stack: Stack) -> None:
    stack.model.script(*[says("not JSON")] * 3)
    job_id = stack.run("asks", 0)
    told = traced(job_id)
    classify = of(told, "classify")
    assert (classify.outcome, classify.ended) == ("blocked", None)
    assert [span.call.why for span in classify.children if span.call] == [
        "ask",
        "retry",
        "fallback",
    ]
    stack.machine.clock.advance(500)  # type: ignore[attr-defined]
    assert of(traced(job_id), "classify").spent("person") >= 500


def test_failed_job_says_at_which_stage_and_why(stack: Stack) -> None:
    stack.model.script(error(400, "invalid_request_error"))
    job_id = stack.run("fails", 0)
    told = traced(job_id)
    classify = of(told, "classify")
    assert told.spans[-1] is classify
    assert classify.outcome == "failed: invalid_request"
    assert classify.ended == told.ended
    assert "attempt 2: invalid_request" in classify.about
    assert [line.bad for line in waterfall.lines(told, 140)][2]


def test_bug_shows_every_try(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("stafette.agent.model.send", bug)
    job_id = stack.ask("bug", 0)
    stack.machine.run_until_quiet(limit=20_000)
    told = traced(job_id)
    classify = of(told, "classify")
    assert len(classify.children) == MOST_FAILURES
    assert classify.attempt == MOST_FAILURES  # the claim that gave up is none
    assert "no word" not in classify.about
    assert (told.head.detail or "").startswith(f"{MOST_FAILURES} tries at classify")
    assert classify.about.count("ZeroDivisionError") == MOST_FAILURES
    assert classify.spent("wait") > 0


def test_cancelled_job_ends_where_it_was(stack: Stack) -> None:
    job_id = stack.ask("cancelled", 2)
    stack.run_until(lambda: stage_of(stack, job_id) == "classified")
    with stack.machine.inside("sweep"):
        recovery.cancel(job_id, "no longer needed")
    told = traced(job_id)
    assert told.spans[-1].outcome == "cancelled: cancelled"
    assert told.as_data()["ended"] is not None
    stack.machine.run_until_quiet()
    traced(job_id)


def test_job_whose_artifacts_are_gone_is_traced_all_the_same(stack: Stack) -> None:
    job_id = stack.run("large", 120, text="x" * 40_000)
    bucket, client = stack.machine.bucket, stack.machine.client("s3")
    listed = client.list_objects_v2(Bucket=bucket, Prefix="artifacts/")["Contents"]
    for each in listed:
        client.delete_object(Bucket=bucket, Key=each["Key"])
    told = traced(job_id)
    assert of(told, "enrich, 120 parts").about.startswith("120 of 120 done")


def test_job_that_was_just_asked_for_and_one_that_is_not_there(stack: Stack) -> None:
    job_id = stack.ask("new", 0)
    assert traces.read(job_id, clock.now()) is None
    stack.machine.step()
    assert names(traced(job_id).spans) == ["route"]
    assert of(traced(job_id), "route").outcome == "sent"


def test_answer_out_of_the_cache_is_no_call_and_says_what_it_saved(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stafette.agent import definition

    load = definition.chain
    monkeypatch.setattr(
        definition,
        "chain",
        lambda name: tuple(a.model_copy(update={"cache": 600}) for a in load(name)),
    )
    sure = "My card was stolen!"
    first, second = stack.run("one", 0, text=sure), stack.run("two", 0, text=sure)
    paid, saved = traced(first).usage, traced(second).usage
    assert (saved.calls, saved.hits, saved.cost_micro) == (0, 2, 0)
    assert saved.saved_micro == paid.cost_micro > 0
    assert "cache hit, saved" in text(traced(second))
