"""What follows from a state: the journal, then side messages, then, last and alone, what moves the state on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafette.core.follow_ups import (
    LONGEST_DELAY,
    Journal,
    Send,
    delay_until,
    follow_ups,
    handoff_of,
    join_message,
    part_messages,
)
from stafette.core.job import Head, Status
from stafette.core.messages import Handoff, Notice, PartWork, RangeWork

NOW = 1_000_000.0


def head(**changes: Any) -> Head:
    known: dict[str, Any] = {
        "job_id": "0" * 26,
        "tenant": "acme",
        "flow": "ticket",
        "stage": "classified",
        "status": Status.ACTIVE,
        "next": "enrich",
        "handoff": "enrich",
        "last": "classify",
        "won": {"intake": 1, "route": 1, "classify": 4},
        "fingerprint": "f",
        "created": NOW,
        "moved": NOW,
        "deadline": NOW + 86_400,
    }
    return Head(**(known | changes))


def waiting(total: int) -> Head:
    return head(
        stage="enriching",
        handoff="enrich:join",
        last="enrich",
        won={"enrich": 5},
        parts=total,
        over="enrich_record",
    )


ENDED = {"next": None, "handoff": None}


def messages(actions: tuple[Any, ...]) -> list[Any]:
    return [action.message for action in actions if isinstance(action, Send)]


def test_a_handoff_is_journaled_with_its_attempt_before_the_next_work_is_sent() -> None:
    journal, send = follow_ups(head(), NOW, {"Ticket": {}})
    assert isinstance(journal, Journal)
    assert (journal.handoff, journal.n, journal.entry["attempt"]) == ("classify", 1, 4)
    assert isinstance(send.message, Handoff)
    assert (send.to, send.message.handoff, send.message.stage) == ("enrich", "enrich", "classified")
    assert send.message.inputs == {"Ticket": {}}


def test_a_side_message_leaves_before_the_one_that_moves_the_state() -> None:
    actions = follow_ups(head(), NOW, notice={"urgency": "high"})
    assert [type(action) for action in actions] == [Journal, Send, Send]
    side, moving = messages(actions)
    assert isinstance(side, Notice)
    assert (side.event, side.n, side.attributes) == ("classified", 1, {"urgency": "high"})
    assert isinstance(moving, Handoff)


@pytest.mark.parametrize("status", [Status.DONE, Status.FAILED, Status.CANCELLED])
def test_an_end_is_journaled_and_told_and_nothing_moves(status: Status) -> None:
    actions = follow_ups(head(status=status, reason="r", generation=2), NOW)
    [notice] = messages(actions)
    assert isinstance(notice, Notice)
    assert (notice.event, notice.n, notice.status) == ("ended", 2, status.value)


def test_ends_and_reopenings_are_numbered_without_a_gap() -> None:
    def numbers(**changes: Any) -> list[tuple[str, int]]:
        written = follow_ups(head(**changes), NOW)
        return [(entry.handoff, entry.n) for entry in written if isinstance(entry, Journal)]

    failed, opened = {"status": Status.FAILED}, {"last": "reopen"}
    assert numbers(**failed) == [("classify", 1), ("job", 1)]
    assert numbers(**opened, generation=1) == [("job", 2)]
    assert numbers(**failed, **opened, generation=1) == [("job", 2), ("job", 3)]
    assert numbers(**opened, generation=2) == [("job", 4)]
    assert numbers(status=Status.CANCELLED, generation=2) == [("classify", 1), ("job", 5)]


def test_entry_of_an_end_leaves_that_of_the_advance_before_it_as_it_was() -> None:
    active = head(moved=NOW - 5)
    failed = head(moved=NOW - 5, ended=NOW, status=Status.FAILED, reason="deadline")
    before, [came, end] = follow_ups(active, NOW)[0], follow_ups(failed, NOW)[:2]
    assert came == before
    assert isinstance(end, Journal)
    assert (end.entry["at"], end.entry["reason"]) == (NOW, "deadline")


@pytest.mark.parametrize(("total", "sizes"), [(1, [1]), (100, [100]), (250, [100, 100, 50])])
def test_a_split_sends_its_ranges(total: int, sizes: list[int]) -> None:
    sent = messages(follow_ups(waiting(total), NOW, parts=list(range(total))))
    assert all(isinstance(message, RangeWork) for message in sent)
    assert [len(message.parts) for message in sent] == sizes
    parts = [part for message in sent for part in part_messages(message)]
    assert [(part.index, part.input) for part in parts] == [(n, n) for n in range(total)]
    assert {(part.total, part.stage, part.join_to, part.to) for part in parts} == {
        (total, "enriching", "enrich", "enrich_record")
    }


def test_a_split_into_nothing_sends_its_join() -> None:
    [join] = messages(follow_ups(waiting(0), NOW, parts=[]))
    assert (join.handoff, join.to, join.stage) == ("enrich:join", "enrich", "enriching")


def test_whoever_finds_a_join_full_sends_what_its_split_would_have_sent_for_nothing() -> None:
    [range_work] = messages(follow_ups(waiting(1), NOW, parts=[0]))
    [part] = part_messages(range_work)
    [alone] = messages(follow_ups(waiting(0), NOW, parts=[]))
    assert isinstance(part, PartWork)
    for work in (range_work, part):
        assert join_message(work).message == alone


def test_a_job_that_waits_is_sent_its_work_under_its_wake_when_the_wait_ends() -> None:
    send = handoff_of(head(wake=3, not_before=NOW + 40.5), NOW)
    assert isinstance(send.message, Handoff)
    assert (send.message.wake, send.delay) == (3, 41)


def test_a_job_that_waits_for_nothing_has_no_next_work() -> None:
    with pytest.raises(ValueError, match="waits for nothing"):
        handoff_of(head(**ENDED), NOW)


@given(st.floats(0, 1e10), st.floats(0, 1e10))
def test_a_delay_is_never_early_and_never_more_than_the_queue_can(
    moment: float, now: float
) -> None:
    delay = delay_until(moment, now)
    assert 0 <= delay <= LONGEST_DELAY
    assert delay >= min(moment - now, LONGEST_DELAY)


@given(st.integers(0, 300), st.booleans())
def test_what_moves_the_state_is_always_last(total: int, told: bool) -> None:
    actions = follow_ups(
        waiting(total), NOW, parts=list(range(total)), notice={"a": "b"} if told else None
    )
    kinds = [type(a.message) if isinstance(a, Send) else Journal for a in actions]
    moving = kinds[1 + told :]
    assert kinds[: 1 + told] == [Journal, Notice][: 1 + told]
    assert moving
    assert set(moving) <= {RangeWork, Handoff}
