"""REQ-DDB-06: a conditional write took effect, its answer was lost, botocore repeated it, and its condition fails."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from local.calls import Call, Phase
from stafette import clock
from stafette.aws import keys, parts, store
from stafette.core.decide import Refuse, Wait, Work, decide
from stafette.core.follow_ups import part_messages
from stafette.core.job import Move, Status
from stafette.core.messages import Handoff, PartWork, RangeWork, read_work
from stafette.core.run import Run
from stafette.relay import recovery
from tests.failures.conftest import Stack

METHODS = {"PutItem": "put_item", "UpdateItem": "update_item"}


def lose_answers(stack: Stack, which: Callable[[Call], bool] = lambda call: True) -> Counter[str]:
    """From now on such writes are carried out once before they are made: what is seen is the repetition."""
    lost: Counter[str] = Counter()

    def first(phase: Phase, call: Call) -> None:
        conditional = "ConditionExpression" in call.parameters
        if phase == "before" and call.operation in METHODS and conditional and which(call):
            client = stack.machine.client("dynamodb")
            with suppress(client.exceptions.ConditionalCheckFailedException):
                getattr(client, METHODS[call.operation])(**call.parameters)
                lost[_sk(call).split("#")[0]] += 1

    stack.machine.on_call(first)
    return lost


def _sk(call: Call) -> str:
    given = call.parameters
    return str((given.get("Key") or given["Item"])["sk"]["S"])


def test_a_whole_run_goes_on_though_the_answer_to_every_conditional_write_is_lost(
    stack: Stack,
) -> None:
    """REQ-DDB-06: own token -> success. Nothing is worked twice, and nothing waits for a redelivery."""
    lost = lose_answers(stack)
    began = stack.machine.clock.now()
    job_id = stack.run("r1", 3)
    assert set(lost) == {
        "RESULT",
        "JOB",
        "EVENT",
        "PART",
        "JOIN",
        "EFFECT",
        "BUDGET",
        "LIMIT",
        "CALL",
    }
    assert stack.head(job_id)["status"] == "done"
    assert stack.machine.clock.now() - began < 10
    assert stack.model.calls == 1 + 3 + 1
    assert set(stack.took_effect(job_id).values()) == {1}
    assert stack.dead() == []
    assert stack.machine.failures == []
    assert all(o.response == {"batchItemFailures": []} for o in stack.machine.outcomes)


@pytest.fixture
def waiting(stack: Stack) -> Handoff:
    """The message of a job that waits for its classification."""
    stack.ask("r1", 2)
    stack.run_to("classify")
    (message,) = stack.machine.backlog()["ClassifyQueue"]
    work = read_work(json.loads(message.body))
    assert isinstance(work, Handoff)
    return work


def _run(work: Any, attempt: int, owner: str = "t-1") -> Run:
    ends = clock.now() + 60
    return Run(work.job_id, "0" * 32, "acme", "ticket", work.handoff, attempt, owner, ends)


def _claim(work: Handoff, owner: str = "t-1") -> Any:
    now = clock.now()
    head = store.claim(work, owner, now + 60, now)
    return decide(head, work, owner, now)


def test_a_claim_with_our_own_token_goes_on(stack: Stack, waiting: Handoff) -> None:
    """REQ-DDB-06."""
    lost = lose_answers(stack)
    with stack.machine.inside("classify"):
        assert _claim(waiting) == Work()
    assert lost == {"JOB": 1}


def test_a_claim_with_another_token_is_lost(stack: Stack, waiting: Handoff) -> None:
    """REQ-DDB-06."""
    with stack.machine.inside("classify"):
        _claim(waiting, "t-2")
        assert isinstance(_claim(waiting), Wait)


def test_a_claim_of_what_is_gone_is_refused(stack: Stack, waiting: Handoff) -> None:
    """REQ-DDB-06: without an item there is no job, and none is made."""
    nobody = waiting.model_copy(update={"job_id": "z" * 26})
    with stack.machine.inside("classify"):
        assert _claim(nobody) == Refuse("unknown_job")
    assert [item for item in stack.items("JOB") if "z" * 26 in item["pk"]] == []


MOVE = Move("classified", "Classified", {}, next="enrich", handoff="enrich")
WRITES: dict[str, Callable[[Run], Any]] = {
    "advance": lambda run: store.advance(run, MOVE, 5.0).stage == "classified",
    "wait": lambda run: store.wait(run, 99.0, wake=1, counts=False).wake == 1,
    "end": lambda run: (
        store.end(run.job_id, Status.FAILED, 5.0, reason="r", detail="d", held=run).status
        == "failed"
    ),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_change_of_state_by_its_own_attempt_goes_on(
    stack: Stack, waiting: Handoff, write: str
) -> None:
    """REQ-DDB-06."""
    with stack.machine.inside("classify"):
        _claim(waiting)
        run = _run(waiting, stack.head(waiting.job_id)["attempt"])
        lost = lose_answers(stack)
        assert WRITES[write](run)
    assert lost == {"JOB": 1}


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_a_change_of_state_by_another_attempt_or_of_nothing_is_lost(
    stack: Stack, waiting: Handoff, write: str, gone: bool
) -> None:
    """REQ-DDB-06: other token, and the case where the item is gone."""
    with stack.machine.inside("classify"):
        _claim(waiting, "t-2")
        run = _run(waiting, stack.head(waiting.job_id)["attempt"])
        if gone:
            pk, sk = keys.head(waiting.job_id)
            stack.machine.client("dynamodb").delete_item(
                TableName=stack.machine.table, Key={"pk": {"S": pk}, "sk": {"S": sk}}
            )
        with pytest.raises(store.LostLeaseError):
            WRITES[write](run)


@pytest.fixture
def one_part() -> PartWork:
    shared = {"tenant": "acme", "to": "enrich_record", "split": "enrich", "stage": "enriching"}
    work = RangeWork(job_id="a" * 26, join_to="enrich", range_no=0, total=1, parts=[{}], **shared)
    return part_messages(work)[0]


def test_a_part_is_claimed_waits_ends_and_is_counted_though_answers_are_lost(
    stack: Stack, one_part: PartWork
) -> None:
    """REQ-DDB-06, for the writes of a fan-out."""
    lost = lose_answers(stack)
    with stack.machine.inside("enrich_record"):
        now = clock.now()
        assert parts.claim(one_part, "t-1", now + 60, now).owner == "t-1"
        parts.wait(one_part, "t-1", now, counts=True)
        again = one_part.model_copy(update={"wake": 1})
        assert parts.claim(again, "t-3", now + 60, now + 1).owner == "t-3"
        with pytest.raises(store.LostLeaseError):
            parts.wait(again, "t-4", now, counts=True)
        assert parts.finish(again, {"n": 1}, now, now)
        assert parts.finish(again, {"n": 2}, now, now)
        assert parts.count(again, ok=True)
        assert [o.value for o in parts.outcomes(again.job_id, "enrich", 1)] == [{"n": 1}]
        assert parts.counted(again.job_id, "enrich", 0) == parts.Count(1, 0)
    assert lost["PART"] >= 4
    assert lost["JOIN"] == 2


def test_reopening_a_job_goes_on_though_its_answer_is_lost(stack: Stack, waiting: Handoff) -> None:
    """REQ-DDB-06: the journal has its entry, and the job moves on."""
    stack.take_away("ClassifyQueue")
    stack.edit(keys.head(waiting.job_id), status="failed", reason="r", detail="d", moved=1)
    lost = lose_answers(stack, lambda call: _sk(call) == "JOB")
    with stack.machine.inside("bury"):
        head = recovery.reopen(waiting.job_id)
    assert lost == {"JOB": 1}
    assert head is not None
    assert head.generation == 1
    assert any(item["sk"] == "EVENT#job#0002" for item in stack.journal(waiting.job_id))
    stack.machine.run_until_quiet()
    assert stack.head(waiting.job_id)["status"] == "done"


def test_a_sweep_pushes_a_job_though_its_answer_is_lost(stack: Stack, waiting: Handoff) -> None:
    """REQ-DDB-06: whoever pushed the look out is the one who looks."""
    stack.take_away("ClassifyQueue")
    lose_answers(stack, lambda call: call.function == "sweep")
    stack.machine.clock.advance(901)
    (outcome,) = stack.machine.run_schedules()
    assert outcome.response == {"pushed": 1}
    stack.machine.run_until_quiet()
    assert stack.head(waiting.job_id)["status"] == "done"


def test_every_conditional_write_asks_for_the_item_it_failed_on(stack: Stack) -> None:
    """REQ-DDB-06: ReturnValuesOnConditionCheckFailure, so that no read is needed to know whose it is."""
    stack.run("r1", 2)
    written = [c.parameters for c in stack.machine.calls if c.operation in METHODS]
    conditional = [given for given in written if "ConditionExpression" in given]
    assert conditional
    assert all(g["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD" for g in conditional)
