"""What the protocol costs, counted from the calls that were really made, by the service's rules for units.

The table that these tests assert is in ARCHITECTURE.md: one pipeline handoff, one part, starting and ending a job,
the guards of a model call, an effect, a duplicate delivery. `tests/support.py` says how units are counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from stafette.core.job import MOST_FAILURES, Head, Status
from stafette.core.numbers import item_size, to_stored
from tests.support import Cost, Ledger, Stack, job_of, running_stack, ticket

# Results of at most 1 KB with what an item adds to them.
SHORT = "My card was charged twice."


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    # The guards of a model call are all on: a tenant without a cap would not be counted.
    with running_stack(environment={"TENANT_BUDGET_USD": "100"}) as running:
        yield running


@dataclass(frozen=True)
class Counted:
    """One ticket, and what it cost."""

    job_id: str
    ledger: Ledger


def counted(stack: Stack, name: str, records: int) -> Counted:
    with stack.counting() as ledger:
        job_id = stack.run(name, records, text=SHORT)
    assert stack.head(job_id)["status"] == "done"
    return Counted(job_id, ledger)


@pytest.fixture(scope="module")
def small(stack: Stack) -> Counted:
    return counted(stack, "small", 1)


# What stands around a model call: its limit, the budgets, the cache; and the head, read to see that the job is active.
GUARDS = ("LIMIT", "BUDGET", "CACHE")


def without_call(ledger: Ledger) -> Ledger:
    """What a function did besides asking a model. Before its limit, a call reads the head, and in a later attempt what
    earlier ones were answered."""
    kept: list[Cost] = []
    for cost in ledger.costs:
        if (cost.sk, cost.operation) == ("LIMIT", "GetItem"):
            head = kept.pop()
            assert (head.sk, head.operation) == ("JOB", "GetItem")
            if kept and kept[-1].operation == "Query":
                kept.pop()
        elif not cost.sk.startswith((*GUARDS, "CALL#")):
            kept.append(cost)
    return Ledger(ledger.stack, kept)


def sums(ledger: Ledger) -> tuple[int, int, int]:
    return ledger.writes, ledger.reads, ledger.sends


@pytest.mark.parametrize("function", ["route", "classify", "draft"])
def test_a_pipeline_handoff_costs_four_writes_no_read_and_one_send(
    small: Counted, function: str
) -> None:
    handoff = without_call(small.ledger.of(function))
    assert sums(handoff) == (4, 0, 1)
    assert [cost.sk.split("#")[0] for cost in handoff.costs] == [
        "JOB",
        "RESULT",
        "JOB",
        "EVENT",
        "",
    ]


def test_a_split_costs_four_writes_and_one_send(small: Counted) -> None:
    before_join = [cost for cost in small.ledger.of("enrich").costs if "join" not in cost.sk]
    split = Ledger(small.ledger.stack, before_join[:5])
    assert sums(split) == (4, 0, 1)


def test_a_part_costs_three_writes_and_a_range_one_more_for_its_report(
    stack: Stack, small: Counted
) -> None:
    eleven = counted(stack, "eleven", 11)
    one, more = (without_call(each.ledger.of("enrich_record")) for each in (small, eleven))
    assert (one.writes, more.writes) == (3 + 1, 11 * 3 + 1)
    assert more.reads - one.reads == 10  # a part asks whether its job still wants it
    hundred = without_call(counted(stack, "hundred-and-one", 101).ledger.of("enrich_record"))
    assert hundred.writes == 101 * 3 + 2
    # One batch for ten parts, in each range; and the join.
    assert (one.sends, more.sends, hundred.sends) == (1 + 1, 2 + 1, 11 + 1)


def test_starting_a_job_costs_five_writes_with_its_indexes_and_one_send(small: Counted) -> None:
    start = small.ledger.of("intake")
    assert sums(start) == (5, 0, 1)
    assert [cost.writes for cost in start.of(sk="JOB").costs] == [3]


def test_starting_and_ending_a_job_costs_eight_writes_with_indexes_and_notice(
    small: Counted,
) -> None:
    last = small.ledger.of("act").without("EFFECT#")
    leaving_the_index = last.writes - 4
    notice = small.ledger.of("notify")
    assert (leaving_the_index, last.reads, last.sends) == (1, 0, 1)
    assert sums(notice) == (2, 0, 0)
    assert small.ledger.of("intake").writes + leaving_the_index + notice.writes <= 8


def test_an_effect_costs_two_writes(small: Counted) -> None:
    for name in ("send_reply", "open_follow_up"):
        effect = small.ledger.of("act", sk=f"EFFECT#{name}")
        assert sums(effect) == (2, 0, 0)


def test_the_record_of_a_model_call_costs_two_writes(small: Counted) -> None:
    for function in ("classify", "enrich_record", "draft"):
        assert sums(small.ledger.of(function, sk="CALL#")) == (2, 0, 0)


@pytest.mark.parametrize("function", ["classify", "enrich_record", "draft"])
def test_the_guards_of_a_model_call_cost_six_writes_with_a_cap_on_its_tenant(
    small: Counted, function: str
) -> None:
    made = small.ledger.of(function)
    limit, budgets = made.of(sk="LIMIT"), made.of(sk="BUDGET")
    assert (limit.writes, limit.reads) == (2, 1)
    job, tenant = (
        [cost for cost in budgets.costs if ("#" in cost.sk) == of_tenant]
        for of_tenant in (False, True)
    )
    assert [cost.writes for cost in (*job, *tenant)] == [1, 1, 1, 1]
    assert limit.writes + budgets.writes <= 6
    assert not limit.failed + budgets.failed


def test_the_cache_costs_a_read_and_a_write_and_a_hit_its_record_alone(stack: Stack) -> None:
    record = {"kind": "order", "id": "order-7", "text": "Order 7, paid."}
    with stack.counting() as ledger:
        stack.run("cached", [record, record], text=SHORT)
    made = ledger.of("enrich_record")
    cache = made.of(sk="CACHE")
    assert [(cost.operation, cost.writes, cost.reads) for cost in cache.costs] == [
        ("GetItem", 0, 1),
        ("PutItem", 1, 0),
        ("GetItem", 0, 1),
    ]
    limit, budgets = made.of(sk="LIMIT"), made.of(sk="BUDGET")
    of_job = sum(cost.writes for cost in budgets.costs if "#" not in cost.sk)
    # Of the one call that was made: what is asked of a call with a limit, its job's budget and a cache.
    assert (limit.writes, of_job, cache.writes) == (2, 2, 1)
    assert made.of(sk="CALL#").writes == 2 + 1


def replayed(stack: Stack, function: str, kind: str = "handoff") -> list[Cost]:
    """What it costs to deliver again the last message of a kind that a function was sent."""
    queue = stack.machine.queue(function).name
    sent = [
        entry["MessageBody"]
        for call in stack.machine.calls
        if call.operation in ("SendMessage", "SendMessageBatch")
        and call.parameters["QueueUrl"].endswith(f"/{queue}")
        for entry in call.parameters.get("Entries", [call.parameters])
        if f'"kind":"{kind}"' in entry["MessageBody"]
    ]
    models = stack.model.calls
    stack.send(function, sent[-1])
    with stack.counting() as ledger:
        stack.machine.step()
    assert stack.model.calls == models
    assert stack.machine.backlog() == {} or ledger.sends
    stack.machine.run_until_quiet()
    return ledger.costs


@pytest.mark.parametrize("function", ["route", "classify", "draft"])
def test_a_duplicate_of_an_older_handoff_costs_one_failed_condition(
    stack: Stack, small: Counted, function: str
) -> None:
    [cost] = replayed(stack, function)
    assert (cost.writes, cost.failed) == (1, True)


def test_a_duplicate_of_the_last_handoff_costs_one_read_and_the_follow_ups_again(
    stack: Stack, small: Counted
) -> None:
    effects = stack.outbox(small.job_id)
    claim, read, journal, notice = replayed(stack, "act")
    assert (claim.writes, claim.failed) == (1, True)
    assert (read.operation, read.reads) == ("GetItem", 1)
    assert (journal.sk, journal.writes, journal.failed) == ("EVENT#act#0001", 1, True)
    assert notice.sends == 1
    assert stack.outbox(small.job_id) == effects
    assert stack.notices(small.job_id) == ["ended"]


def test_a_duplicate_notice_costs_one_failed_condition(stack: Stack, small: Counted) -> None:
    [cost] = replayed(stack, "notify", "notice")
    assert (cost.writes, cost.failed) == (1, True)


def test_a_duplicate_of_a_part_whose_job_moved_on_costs_one_read(
    stack: Stack, small: Counted
) -> None:
    [cost] = replayed(stack, "enrich_record", "part")
    assert (cost.reads, cost.writes) == (1, 0)


def test_a_duplicate_of_a_part_costs_one_failed_condition_and_its_count_again(
    stack: Stack,
) -> None:
    job_id = stack.ask("part-twice", 2, text=SHORT)
    with stack.sending_twice():
        stack.run_until(lambda: bool(stack.partition(f"JOB#{job_id}#enrich#000")))
        with stack.counting() as ledger:
            stack.machine.run_until_quiet()
    parts = ledger.of("enrich_record", sk="PART#00000")
    assert sum(cost.failed for cost in parts.costs) <= 1
    assert stack.head(job_id)["status"] == "done"


def test_a_duplicate_request_costs_one_failed_condition_and_one_read(
    stack: Stack, small: Counted
) -> None:
    stack.send("intake", ticket("small", 1, text=SHORT))
    with stack.counting() as ledger:
        stack.machine.run_until_quiet()
    assert [(cost.function, cost.writes, cost.reads, cost.failed) for cost in ledger.costs] == [
        ("intake", 1, 0, True),
        ("intake", 0, 1, False),
    ]
    assert job_of("small") == small.job_id


def test_a_head_stays_under_a_kilobyte_with_everything_that_it_can_hold() -> None:
    moment = 1_799_999_999.123456
    names = ("intake", "route", "classify", "enrich", "enrich:join", "draft", "act")
    head = Head(
        job_id="x" * 26,
        tenant="t" * 64,
        flow="ticket",
        stage="enriching",
        status=Status.FAILED,
        next="enrich",
        handoff="enrich:join",
        last="enrich",
        won=dict.fromkeys(names, 99_999),
        parts=10_000,
        over="enrich_record",
        generation=99,
        attempt=99_999,
        failures=MOST_FAILURES,
        wake=99,
        owner=f"{'r' * 36}/{'m' * 36}",
        lease=moment,
        not_before=moment,
        fingerprint="f" * 32,
        created=moment,
        moved=moment,
        deadline=moment,
        due=moment,
        cap_micro=10**12,
        cap_tokens=10**12,
    )
    item = head.model_dump(exclude_none=True, mode="json") | {
        "pk": f"JOB#{head.job_id}",
        "sk": "JOB",
        "due_shard": "DUE#7",
        "list_shard": "JOB#7",
        "listed_at": moment,
    }
    working = item_size(to_stored(item))
    assert working < 1024
    # An ended job has no lease and no date, and says why it ended.
    gone = ("owner", "lease", "not_before", "due", "due_shard")
    ended = {name: value for name, value in item.items() if name not in gone}
    assert item_size(to_stored(ended | {"reason": "r" * 60, "detail": "d" * 300})) < 1024
