"""A fan-out joins once, over all of its parts, in their order: however many, whatever fails, whatever comes twice."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local.model import Response, error
from local.model_answers import answer
from local.records import Ending
from stafette.core.errors import PermanentError
from stafette.core.job import MOST_FAILURES
from stafette.core.joins import Policy
from stafette.relay import recovery
from tests.support import Stack, running_stack, script_agent


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(keep=True) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_known(stack: Stack) -> None:
    """No answer that an earlier test was given is known any more."""
    an_hour_later(stack)


def an_hour_later(stack: Stack) -> None:
    stack.machine.clock.advance_to(stack.machine.clock.now() + 3_600)


Answers = Callable[[dict[str, Any]], Any]


@pytest.fixture
def answers(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], None]:
    """Lets a rule answer every request: None leaves it to the offline model."""

    def use(rule: Answers) -> None:
        def respond(request: dict[str, Any]) -> Response:
            given = rule(request)
            return given if isinstance(given, Response) else Response(answer(request))

        monkeypatch.setattr(stack.model, "respond", respond)

    return use


def failing(*orders: int) -> Answers:
    """The reader of these orders is told that its request is invalid."""
    texts = tuple(f"order order-{n}:" for n in orders)

    def rule(request: dict[str, Any]) -> Response | None:
        said = json.dumps(request["messages"])
        return error(400, "invalid_request_error") if any(t in said for t in texts) else None

    return rule


def enriched(ending: Ending) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(ending.results["enrich:join"])
    return value


def assert_joined(stack: Stack, job_id: str, total: int, failed: tuple[int, ...] = ()) -> None:
    ending = stack.ending(job_id)
    assert (ending.stage, ending.status, ending.waits) == ("acted", "done", False)
    assert "EVENT#enrich:join#0001" in ending.journal
    found = enriched(ending)
    assert (found["read"], found["failed"]) == (total - len(failed), len(failed))
    expected = [f"order-{n}" for n in range(total) if n not in failed]
    assert [finding["record"] for finding in found["findings"]] == expected
    assert sorted(ending.parts) == [f"enrich:{n:05d}" for n in range(total)]
    assert sum(count for name, (count, *_) in ending.joins.items() if "#" in name) == total
    if total:
        assert ending.joins["enrich"][:2] == ((total + 99) // 100, len(failed))
    assert stack.machine.backlog() == {}
    assert stack.notices(job_id) == ["ended"]


def orders(count: int) -> list[dict[str, str]]:
    return [{"kind": "order", "id": f"order-{n}", "text": "A part of 4711."} for n in range(count)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For fan-outs that are wide and not about the model."""
    script_agent(monkeypatch)


@pytest.mark.parametrize("count", [0, 1, 100, 101])
def test_so_many_records_join_once_in_order(quick: None, stack: Stack, count: int) -> None:
    assert_joined(stack, stack.run(f"count-{count}", **fan(count)), count)


def fan(count: int) -> dict[str, Any]:
    return {"records": orders(count), "text": "My order 4711 was charged to my card."}


@pytest.mark.slow
def test_a_thousand_records_join_once_in_order_though_some_fail(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = (0, 99, 100, 555, 999)
    is_failing = failing(*failed)

    def refuse(request: dict[str, Any]) -> None:
        if is_failing(request):
            raise PermanentError(reason="invalid_request")

    script_agent(monkeypatch, refuse)
    job_id = stack.run("thousand", **fan(1000))
    assert_joined(stack, job_id, 1000, failed)


@pytest.mark.parametrize("failed", [(0,), (2, 4), (0, 1, 2, 3, 4)])
def test_parts_that_fail_are_counted_with_their_reason(
    stack: Stack, answers: Callable[[Answers], None], failed: tuple[int, ...]
) -> None:
    answers(failing(*failed))
    job_id = stack.run(f"failed-{len(failed)}", **fan(5))
    assert_joined(stack, job_id, 5, failed)
    parts = stack.ending(job_id).parts
    assert {parts[f"enrich:{n:05d}"] for n in failed} == {"invalid_request"}


def test_a_part_and_a_range_delivered_twice_count_once(stack: Stack) -> None:
    asked = stack.model.calls
    with stack.sending_twice():
        job_id = stack.run("twice", **fan(12))
    assert_joined(stack, job_id, 12)
    assert stack.model.calls - asked == 12 + 2


def at_join(stack: Stack, name: str, count: int = 3) -> tuple[str, str]:
    """A job whose parts are all counted, and the message that calls its join, taken off the queue."""
    job_id = stack.ask(name, **fan(count))
    stack.run_until(lambda: stage_of(stack, job_id) == "enriching")
    stack.run_until(lambda: "EnrichQueue" in stack.machine.backlog())
    [join] = stack.take_away("enrich")
    stack.machine.run_until_quiet()
    return job_id, join


def stage_of(stack: Stack, job_id: str) -> str | None:
    item = stack.item(f"JOB#{job_id}", "JOB")
    return item["stage"] if item else None


def sent(stack: Stack, job_id: str, kind: str) -> list[str]:
    """The bodies of a kind that were sent for a job."""
    return [
        entry["MessageBody"]
        for call in stack.machine.calls
        if call.operation in ("SendMessage", "SendMessageBatch")
        for entry in call.parameters.get("Entries", [call.parameters])
        if f'"kind":"{kind}"' in entry["MessageBody"] and job_id in entry["MessageBody"]
    ]


def test_a_part_that_is_counted_and_comes_again_finds_the_join_full_and_sends_it_again(
    stack: Stack,
) -> None:
    job_id, _ = at_join(stack, "join-lost")
    assert stage_of(stack, job_id) == "enriching"
    asked = stack.model.calls
    stack.send("enrich_record", sent(stack, job_id, "part")[0])
    stack.machine.run_until_quiet()
    assert_joined(stack, job_id, 3)
    assert stack.model.calls - asked == 1  # the draft


def test_a_range_that_comes_again_after_its_parts_ended_sends_the_join_again(
    stack: Stack,
) -> None:
    job_id, _ = at_join(stack, "join-lost-range")
    stack.send("enrich_record", sent(stack, job_id, "range")[0])
    stack.machine.run_until_quiet()
    assert_joined(stack, job_id, 3)


def test_a_late_result_changes_nothing(stack: Stack) -> None:
    job_id = stack.run("late", **fan(3))
    before = stack.ending(job_id)
    for body in (*sent(stack, job_id, "range"), *sent(stack, job_id, "part")):
        stack.send("enrich_record", body)
    stack.machine.run_until_quiet()
    assert stack.ending(job_id) == before


def test_a_result_that_comes_after_its_part_was_given_up_changes_nothing(
    stack: Stack, answers: Callable[[Answers], None]
) -> None:
    job_id = stack.ask("given-up", **fan(3))
    buried: list[str] = []

    def bury_meanwhile(request: dict[str, Any]) -> None:
        """The first part's model answers after its lease, when bury has given the part up."""
        parts = sent(stack, job_id, "part")
        if parts and not buried and "order order-0:" in json.dumps(request["messages"]):
            buried.append(parts[0])
            stack.edit((f"JOB#{job_id}#enrich#000", "PART#00000"), failures=MOST_FAILURES)
            stack.machine.clock.advance(60)
            stack.send("bury", parts[0])
            mapping = next(m for m in stack.machine.mappings if m.function.name == "bury")
            stack.machine.deliver(mapping, mapping.take())

    answers(bury_meanwhile)
    stack.machine.run_until_quiet()
    assert len(buried) == 1
    assert_joined(stack, job_id, 3, failed=(0,))
    assert stack.ending(job_id).parts["enrich:00000"] == "attempts_exhausted"


def test_parts_that_bury_finds_unbegun_or_bounced_or_under_way(stack: Stack) -> None:
    job_id = stack.ask("bury-parts", **fan(3))
    stack.run_until(lambda: len(sent(stack, job_id, "part")) == 3)
    unbegun, bounced, held = sorted(stack.take_away("enrich_record"))
    place = f"JOB#{job_id}#enrich#000"
    stack.edit((place, "PART#00001"), index=1, attempt=2, failures=2)
    later = stack.machine.clock.now() + 30
    stack.edit((place, "PART#00002"), index=2, attempt=1, failures=1, owner="t", lease=later)
    for body in (unbegun, bounced, held):
        stack.send("bury", body)
    stack.machine.run_until_quiet()
    ending = stack.ending(job_id)
    assert ending.status == "done"
    assert ending.parts["enrich:00000"] == "never_started"
    assert (enriched(ending)["read"], enriched(ending)["failed"]) == (2, 1)
    reasons = sorted(record["reason"] for record in stack.dead(job_id))
    assert reasons == ["bounced", "bounced", "never_started"]


def test_reopening_works_the_parts_that_failed_and_no_others(
    stack: Stack, answers: Callable[[Answers], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, late_join = at_join(stack, "join-of-another")
    an_hour_later(stack)
    monkeypatch.setattr(Policy, "holds", lambda _policy, _total, failed: failed == 0)
    answers(failing(*range(0, 104, 2)))
    job_id = stack.run("open-again", **fan(104))
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == ("failed", "join_policy")
    late_part = json.loads(sent(stack, job_id, "part")[0])
    asked: list[str] = []
    answers(lambda request: asked.append(json.dumps(request["messages"])))
    with stack.machine.inside("bury"):
        assert recovery.reopen(job_id) is not None
    # What was sent before the job was opened again is too old for it: it neither joins nor counts.
    stack.send("enrich", json.loads(late_join) | {"job_id": job_id})
    stack.send("enrich_record", late_part)
    stack.machine.run_until_quiet()
    assert_joined_again(stack, job_id, 104)
    asked.pop()  # the reply, which is about all of them
    again = [n for n in range(104) if any(f"order order-{n}:" in said for said in asked)]
    assert again == list(range(0, 104, 2))


def test_a_join_that_is_sent_too_early_does_not_run_over_missing_parts(
    quick: None, stack: Stack
) -> None:
    _, join = at_join(stack, "template-of-a-join")
    job_id = stack.ask("early", **fan(101))
    stack.run_until(lambda: stage_of(stack, job_id) == "enriching")
    body = json.loads(join) | {"job_id": job_id}
    stack.take_away("enrich_record")
    stack.send("enrich", body)
    stack.machine.run_until_quiet()
    head = stack.head(job_id)
    assert (head["status"], head["reason"], head["stage"]) == ("failed", "join_early", "enriching")
    with stack.machine.inside("bury"):
        assert recovery.reopen(job_id) is not None
    stack.machine.run_until_quiet()
    assert_joined_again(stack, job_id, 101)


def assert_joined_again(stack: Stack, job_id: str, total: int) -> None:
    ending = stack.ending(job_id)
    assert (ending.status, enriched(ending)["read"]) == ("done", total)


def test_burying_a_range_fails_its_uncounted_parts_and_no_others(quick: None, stack: Stack) -> None:
    job_id = stack.ask("range-buried", **fan(102))
    stack.run_until(lambda: "EnrichRecordQueue" in stack.machine.backlog())
    first, second = stack.take_away("enrich_record")
    [last] = [body for body in (first, second) if json.loads(body)["range_no"] == 1]
    [other] = [body for body in (first, second) if json.loads(body)["range_no"] == 0]
    part = json.loads(last) | {"kind": "part", "index": 100}
    part["input"] = part.pop("parts")[0]
    part.pop("range_no")
    stack.send("enrich_record", part)
    stack.machine.run_until_quiet()
    stack.send("bury", last)
    stack.send("bury", last)
    stack.machine.run_until_quiet()
    stack.send("enrich_record", other)
    stack.machine.run_until_quiet()
    assert_joined(stack, job_id, 102, failed=(101,))
    assert stack.ending(job_id).parts["enrich:00101"] == "never_started"
