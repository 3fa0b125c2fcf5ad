"""A worker dies at the points that the protocol was made for, and the job ends as if nobody had.

* The points are named here; `make prove` tries every call of every function, test_prove.py a sample of them.
* Each run ends in the same stage, status, results, parts, joins, journal and effects, with no message left.
* No effect is applied twice. The end is told once; twice only where the publishing itself was cut off.
"""

import json
from collections.abc import Callable, Iterator

import pytest

from local.calls import Call, Phase
from local.model import error
from local.model_answers import answer
from local.records import Ending
from tests.support import URGENT, Stack, job_of, running_stack, ticket

TEXT = ticket(None)["input"]["text"] + URGENT


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.fixture(autouse=True)
def an_hour_later(stack: Stack) -> None:
    """No answer that an earlier test was given is known any more."""
    stack.machine.clock.advance_to(stack.machine.clock.now() + 3_600)


@pytest.fixture(scope="module")
def undisturbed(stack: Stack) -> Ending:
    """How an urgent ticket with three records ends."""
    ending = stack.ending(stack.run("undisturbed", text=TEXT))
    assert (ending.stage, ending.status, ending.waits) == ("acted", "done", False)
    assert set(ending.outbox) == {"send_reply.json", "open_follow_up.json"}
    assert ending.notices == ("classified", "ended")
    return ending


def assert_same(stack: Stack, job_id: str, expected: Ending, since: int) -> None:
    assert stack.ending(job_id) == expected
    assert stack.machine.backlog() == {}
    puts = stack.took_effect(job_id, since)
    assert all(times == 1 for times in puts.values()), puts


Where = Callable[[Call], bool]


def writing(function: str, name: str, sk: str) -> Where:
    """True of a function's writes to the table on sort keys that begin so."""

    def where(call: Call) -> bool:
        item = call.parameters.get("Key") or call.parameters.get("Item")
        if (call.function, call.operation) != (function, name) or not isinstance(item, dict):
            return False
        return str(item["sk"]["S"]).startswith(sk)

    return where


def advancing(function: str) -> Where:
    """True of the write that moves a job on."""

    def where(call: Call) -> bool:
        names = call.parameters.get("ExpressionAttributeNames", {}).values()
        return writing(function, "UpdateItem", "JOB")(call) and "won" in names

    return where


def sending(function: str, to: str) -> Where:
    """True of a function's messages to the queue of another."""
    queue = f"{to.title().replace('_', '')}Queue"
    return lambda call: (
        call.function == function
        and call.operation in ("SendMessage", "SendMessageBatch")
        and call.parameters["QueueUrl"].endswith(queue)
    )


def assert_survived(
    stack: Stack, expected: Ending, name: str, where: Where, phase: Phase, told: int = 2
) -> None:
    since, crashes = len(stack.machine.calls), len(stack.machine.crashes)
    with stack.dying_at(where, phase):
        job_id = stack.run(name, text=TEXT)
    assert len(stack.machine.crashes) == crashes + 1
    assert_same(stack, job_id, expected, since)
    assert len(stack.notices(job_id)) == told


@pytest.mark.parametrize("function", ["route", "classify", "draft"])
def test_death_after_the_advance_and_before_the_send_does_not_lose_the_job(
    stack: Stack, undisturbed: Ending, function: str
) -> None:
    name = f"advanced-{function}"
    assert_survived(stack, undisturbed, name, advancing(function), "after")


def test_death_between_the_side_message_and_the_moving_message_of_an_urgent_ticket(
    stack: Stack, undisturbed: Ending
) -> None:
    where = sending("classify", "notify")
    assert_survived(stack, undisturbed, "side-message", where, "after")


def test_death_after_the_last_advance_and_before_notify_still_tells_the_end_once(
    stack: Stack, undisturbed: Ending
) -> None:
    assert_survived(stack, undisturbed, "last-advance", advancing("act"), "after")


def test_death_after_splitting_and_before_the_ranges_does_not_lose_a_part(
    stack: Stack, undisturbed: Ending
) -> None:
    assert_survived(stack, undisturbed, "split", advancing("enrich"), "after")


def test_death_after_a_shard_is_full_and_before_its_report_still_joins_once(
    stack: Stack, undisturbed: Ending
) -> None:
    def last_part(call: Call) -> bool:
        return (
            writing("enrich_record", "UpdateItem", "JOIN")(call)
            and call.parameters["Key"]["pk"]["S"].endswith("#000")
            and call.response["Attributes"]["completed"]["N"] == "3"
        )

    assert_survived(stack, undisturbed, "shard-full", last_part, "after")


def test_death_between_an_effect_and_its_record_does_not_repeat_the_effect(
    stack: Stack, undisturbed: Ending
) -> None:
    def effect(call: Call) -> bool:
        return (call.function, call.operation) == ("act", "PutObject")

    assert_survived(stack, undisturbed, "effect", effect, "after")


def test_death_between_publishing_and_its_record_tells_the_world_again_under_the_same_id(
    stack: Stack, undisturbed: Ending
) -> None:
    def publish(call: Call) -> bool:
        return call.operation == "Publish" and "ended" in call.parameters["Message"]

    assert_survived(stack, undisturbed, "publish", publish, "after", told=3)
    job_id = job_of("publish")
    told = [json.loads(each["message"]) for each in stack.machine.published]
    ids = {n["notice_id"] for n in told if n["job_id"] == job_id and n["event"] == "ended"}
    assert ids == {f"{job_id}/notify_ended_0"}


def test_every_message_delivered_twice_sends_and_does_nothing_twice(
    stack: Stack, undisturbed: Ending
) -> None:
    since, asked = len(stack.machine.calls), stack.model.calls
    with stack.sending_twice():
        stack.ask("twice", text=TEXT)
        job_id = stack.run("twice", text=TEXT)
    assert_same(stack, job_id, undisturbed, since)
    assert len(stack.notices(job_id)) == 2
    assert stack.model.calls - asked == 5
    assert stack.dead() == []


def test_every_message_of_a_job_that_is_done_delivered_again_changes_nothing(
    stack: Stack, undisturbed: Ending
) -> None:
    since = len(stack.machine.calls)
    job_id = stack.run("late", text=TEXT)
    sent = [
        (call.parameters["QueueUrl"], entry["MessageBody"])
        for call in stack.machine.calls[since:]
        if call.operation in ("SendMessage", "SendMessageBatch")
        for entry in call.parameters.get("Entries", [call.parameters])
    ]
    asked = stack.model.calls
    for url, body in sent:
        stack.machine.client("sqs").send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId="acme"
        )
    stack.machine.run_until_quiet()
    assert len(sent) > 8
    assert_same(stack, job_id, undisturbed, since)
    assert (stack.model.calls, stack.dead()) == (asked, [])
    assert len(stack.notices(job_id)) == 2


def test_two_outages_of_the_model_delay_a_job_and_change_nothing(
    stack: Stack, undisturbed: Ending
) -> None:
    since, began = len(stack.machine.calls), stack.machine.clock.now()
    overloaded, broken = error(529, "overloaded_error"), error(500, "api_error")
    stack.model.script(overloaded, overloaded, answer, broken, broken, broken, broken)
    job_id = stack.run("outages", text=TEXT)
    assert stack.model.unused == 0
    assert_same(stack, job_id, undisturbed, since)
    assert len(stack.notices(job_id)) == 2
    assert stack.machine.clock.now() > began + 2
