"""What is left of a job when its time is over: a small head, by which the same request is the same job for ever."""

from collections.abc import Iterator

import pytest

from local import show
from local.model import error
from stafette import settings
from stafette.aws.dead import listed
from stafette.core.job import LONGEST_LIFE, MOST_FAILURES, Head
from stafette.relay import recovery
from tests.support import Json, Stack, running_stack, ticket


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


def sweep(stack: Stack) -> Json:
    answer: Json = stack.machine.invoke("sweep", {})
    stack.machine.run_until_quiet()
    return answer


def live_on(stack: Stack, seconds: float) -> None:
    """So much later, when the table has let go of what had expired by then."""
    clock, client = stack.machine.clock, stack.machine.client("dynamodb")
    clock.advance_to(clock.now() + seconds)
    for item in stack.everything():
        if item.get("expires", clock.now() + 1) <= clock.now():
            key = {"pk": {"S": item["pk"]}, "sk": {"S": item["sk"]}}
            client.delete_item(TableName=stack.machine.table, Key=key)


def life() -> float:
    return LONGEST_LIFE + settings.retention() + 60


def test_a_job_that_ended_long_ago_is_still_the_job_of_its_request(stack: Stack) -> None:
    job_id = stack.run("old")
    before = stack.head(job_id)
    live_on(stack, life() - 120)
    assert sweep(stack) == {"pushed": 0, "expired": 0}
    live_on(stack, 120)
    assert [sweep(stack)["expired"] for _ in range(2)] == [1, 0]

    head = stack.head(job_id)
    kept = {"job_id", "tenant", "flow", "stage", "status", "fingerprint", "created", "moved"}
    assert {name: head[name] for name in kept} == {name: before[name] for name in kept}
    assert float(head["expired"]) == pytest.approx(stack.machine.clock.now())
    assert not {"next", "handoff", "parts", "list_shard", "listed_at"} & head.keys()

    told = len(stack.machine.published)
    assert stack.run("old") == job_id  # asked for again
    stack.send("intake", {**ticket("old"), "input": {"text": "Something else."}})
    stack.machine.run_until_quiet()
    [refused] = stack.dead()
    assert refused["reason"] == "request_id_conflict"
    assert stack.head(job_id) == head
    assert (len(stack.machine.published), stack.journal(job_id)) == (told, [])
    with stack.machine.inside("sweep"):
        assert listed("JOB", 10) == []


def test_nothing_follows_from_a_job_that_expired(stack: Stack) -> None:
    job_id = stack.ask("messages")
    stack.run_until(lambda: stack.machine.queue("act").logical_id in stack.machine.backlog())
    [act] = stack.take_away("act")
    stack.send("act", act)
    stack.machine.run_until_quiet()
    live_on(stack, life())
    assert sweep(stack)["expired"] == 1
    head, told = stack.head(job_id), len(stack.machine.published)
    stack.send("act", act)  # kept by somebody, and sent again
    stack.send("bury", act)
    stack.machine.run_until_quiet()
    assert (stack.head(job_id), stack.journal(job_id)) == (head, [])
    assert len(stack.machine.published) == told
    assert [each["reason"] for each in stack.dead()] == ["outdated"]


def test_a_failed_job_is_not_opened_again_when_only_its_head_is_left(stack: Stack) -> None:
    stack.model.script(*[error(500, "api_error")] * MOST_FAILURES)
    job_id = stack.run("failed", 0)
    live_on(stack, life())
    sweep(stack)
    with stack.machine.inside("bury"):
        assert recovery.reopen(job_id) is None
    assert stack.head(job_id)["status"] == "failed"
    assert stack.head(job_id)["reason"] == "attempts_exhausted"


def test_a_job_that_was_opened_again_lives_from_then_on(stack: Stack) -> None:
    stack.model.script(*[error(500, "api_error")] * MOST_FAILURES)
    job_id = stack.run("reopened", 0)
    live_on(stack, LONGEST_LIFE)
    with stack.machine.inside("bury"):
        assert recovery.reopen(job_id) is not None
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"
    live_on(stack, settings.retention() + 60)
    assert sweep(stack)["expired"] == 0
    live_on(stack, LONGEST_LIFE)
    assert sweep(stack)["expired"] == 1


def test_cancelling_again_tells_nothing_again_whatever_has_expired(stack: Stack) -> None:
    job_id = stack.ask("cancelled")
    stack.run_until(lambda: stack.machine.queue("act").logical_id in stack.machine.backlog())

    def cancel() -> None:
        with stack.machine.inside("sweep"):
            assert recovery.cancel(job_id, "by hand") is not None
        stack.machine.run_until_quiet()

    cancel()
    assert stack.notices(job_id).count("ended") == 1
    live_on(stack, life())
    cancel()  # nobody has cut it down yet
    assert sweep(stack)["expired"] == 1
    cancel()
    assert stack.notices(job_id).count("ended") == 1
    assert stack.journal(job_id) == []
    assert show.ending(Head.from_item(stack.head(job_id))) == "cancelled"
