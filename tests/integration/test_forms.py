"""Work that waits for a person: asked once, answered once, gone on with there; nothing is lost whoever dies when."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from local.calls import Call, Phase
from stafette.agent import ask as asking
from stafette.core.asked import VERSION
from stafette.core.errors import BlockedError, RefusedError, ThrottledError
from stafette.core.form import Form, Scope
from stafette.core.job import FIRST_LOOK
from stafette.core.messages import read_answer
from stafette.core.run import Run
from stafette.relay import recovery
from stafette.relay.answers import LONGEST, answer
from tests.support import Json, Stack, running_stack, script_agent

SCHEMA = {
    "type": "object",
    "properties": {"go": {"type": "boolean"}, "why": {"type": "string"}},
    "required": ["go"],
    "additionalProperties": False,
}
GO = {"go": True}


def sure(scope: Scope = "work", seconds: float = 3600.0) -> Form:
    return Form("sure", "Shall it go on?", SCHEMA, {"seen": "a text"}, scope, seconds)


class People:
    """Decides which work asks. `given` are the answers that work was given, by its handoff."""

    def __init__(self) -> None:
        self.needs: Callable[[Run], Form | None] = lambda run: None
        self.given: dict[str, list[Json]] = {}
        self.answers_are_read = True

    def of(self, *handoffs: str, form: Form | None = None) -> None:
        wanted = form or sure()
        self.given, self.answers_are_read = {}, True
        self.needs = lambda run: wanted if run.handoff in handoffs else None

    def check(self, run: Run) -> None:
        self.given.setdefault(run.handoff, []).append(dict(run.answers))
        form = self.needs(run)
        if form is not None and not (self.answers_are_read and form.name in run.answers):
            raise BlockedError(form)


@pytest.fixture(scope="module")
def people() -> Iterator[People]:
    who = People()
    with pytest.MonkeyPatch.context() as patch:
        script_agent(patch)
        really = asking.ask

        def ask(run: Run, **asked: Any) -> Any:
            who.check(run)
            return really(run, **asked)

        patch.setattr(asking, "ask", ask)
        yield who


@pytest.fixture(scope="module")
def stack(people: People) -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.fixture(autouse=True)
def nobody_is_asked(people: People) -> Iterator[None]:
    yield
    people.of()


def say(stack: Stack, job_id: str, form: str, value: Json = GO, more: Json | None = None) -> None:
    stack.send(
        "answer", {"job_id": job_id, "form": form, "answer": value, "by": "anna"} | (more or {})
    )
    stack.machine.run_until_quiet()


def form_of(stack: Stack, job_id: str, form: str) -> Json:
    item = stack.item(f"JOB#{job_id}", f"FORM#{form}")
    assert item is not None, f"{form} was never asked"
    return item


def asked_forms(stack: Stack, job_id: str) -> list[str]:
    items = stack.partition(f"JOB#{job_id}")
    return [item["sk"][5:] for item in items if item["sk"].startswith("FORM#")]


def said(stack: Stack, job_id: str, form: str) -> list[str]:
    return [e["status"] for e in stack.journal(job_id) if e["sk"].startswith(f"EVENT#{form}#")]


def assert_blocked(stack: Stack, job_id: str, form: str) -> None:
    head = stack.head(job_id)
    assert (head["status"], head.get("form"), head["failures"]) == ("blocked", form, 0)
    assert not {"owner", "lease"} & head.keys()
    assert form_of(stack, job_id, form)["state"] == "open"
    assert said(stack, job_id, form) == ["asked"]
    assert stack.notices(job_id) == ["asked"]
    assert stack.machine.backlog() == {}
    assert stack.dead(job_id) == []


def assert_done(stack: Stack, job_id: str, *asked: str) -> None:
    ending = stack.ending(job_id)
    assert (ending.stage, ending.status, ending.waits) == ("acted", "done", False)
    assert asked_forms(stack, job_id) == list(asked)
    for form in asked:
        item = form_of(stack, job_id, form)
        assert (item["state"], said(stack, job_id, form)) == ("answered", ["asked", "answered"])
        assert not {"due", "due_shard", "list_shard"} & item.keys()
    told = Counter(stack.notices(job_id))
    # Who answers before anybody was told need not be told.
    assert told["ended"] == 1
    assert told["asked"] <= len(asked)
    assert told.keys() <= {"asked", "ended"}
    assert set(stack.took_effect(job_id).values()) == {1}
    assert stack.machine.backlog() == {}


# --- a stage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["classify", "draft"])
def test_a_stage_waits_for_a_person_and_goes_on_with_the_answer(
    stack: Stack, people: People, stage: str
) -> None:
    people.of(stage)
    job_id = stack.run(f"stage-{stage}")
    assert_blocked(stack, job_id, f"{stage}.sure")
    say(stack, job_id, f"{stage}.sure", {"go": True, "why": "fine"})
    assert_done(stack, job_id, f"{stage}.sure")
    assert people.given[stage] == [{}, {"sure": {"go": True, "why": "fine"}}]
    assert form_of(stack, job_id, f"{stage}.sure")["by"] == "anna"


def test_no_time_of_the_job_is_used_up_while_a_person_thinks(stack: Stack, people: People) -> None:
    week = 7 * 86_400.0
    people.of("classify", form=sure(seconds=week))
    job_id = stack.run("week")
    for _ in range(20):
        stack.machine.clock.advance(week / 20 - 60)
        stack.machine.invoke("sweep", {})
    assert_blocked(stack, job_id, "classify.sure")
    say(stack, job_id, "classify.sure")
    assert_done(stack, job_id, "classify.sure")


def test_a_message_that_comes_again_asks_nobody_again(stack: Stack, people: People) -> None:
    people.of("classify")
    with stack.sending_twice():
        job_id = stack.run("twice")
    assert_blocked(stack, job_id, "classify.sure")
    with stack.sending_twice():
        say(stack, job_id, "classify.sure")
    assert_done(stack, job_id, "classify.sure")


def test_work_that_does_not_read_its_answer_fails_and_is_not_asked_for_ever(
    stack: Stack, people: People
) -> None:
    people.of("classify")
    people.answers_are_read = False
    job_id = stack.run("deaf")
    say(stack, job_id, "classify.sure")
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == ("failed", "asked_again")


# --- a part ----------------------------------------------------------------------------------------------------


def test_a_part_waits_and_the_others_do_not(stack: Stack, people: People) -> None:
    people.of("enrich:00001", "enrich:00003")
    job_id = stack.run("parts", 5)
    assert stack.head(job_id)["status"] == "active"
    ids = ["enrich:00001.sure", "enrich:00003.sure"]
    assert asked_forms(stack, job_id) == ids
    shard = stack.item(f"JOB#{job_id}#enrich#000", "JOIN")
    assert shard is not None
    assert shard["completed"] == 3
    # Handed out again by sweep: who waits is not asked again, and nobody is alarmed.
    stack.machine.clock.advance_to(float(stack.head(job_id)["due"]))
    assert stack.machine.invoke("sweep", {})["pushed"] == 1
    stack.machine.run_until_quiet()
    assert stack.notices(job_id) == ["asked", "asked"]
    for form in ids:
        say(stack, job_id, form)
    assert_done(stack, job_id, *ids)
    assert people.given["enrich:00001"] == [{}, {"sure": GO}]
    assert len(people.given["enrich:00000"]) == 1


def test_a_job_of_which_a_part_waits_is_not_stuck(
    stack: Stack, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.of("enrich:00000", form=sure(seconds=7 * 86_400))
    job_id = stack.run("long", 2)
    counted: list[str] = []
    monkeypatch.setattr("stafette.trace.count", lambda metric, n=1: counted.append(metric))
    for _ in range(4):
        stack.machine.clock.advance_to(float(stack.head(job_id)["due"]))
        stack.machine.invoke("sweep", {})
        stack.machine.run_until_quiet()
    assert stack.machine.clock.now() > stack.head(job_id)["created"] + 2 * FIRST_LOOK
    assert "StuckJobs" not in counted
    say(stack, job_id, "enrich:00000.sure")
    assert_done(stack, job_id, "enrich:00000.sure")


def test_the_whole_job_asks_once_for_all_of_its_parts(stack: Stack, people: People) -> None:
    people.of(*(f"enrich:{n:05d}" for n in range(5)), form=sure("job"))
    job_id = stack.run("all", 5)
    assert_blocked(stack, job_id, "job.sure")
    say(stack, job_id, "job.sure")
    assert_done(stack, job_id, "job.sure")
    assert all(given[-1] == {"sure": GO} for given in people.given.values() if len(given) > 1)


def test_parts_that_are_done_when_the_job_asks_are_not_done_again(
    stack: Stack, people: People
) -> None:
    people.of("enrich:00003", form=sure("job"))
    job_id = stack.run("most", 4)
    assert_blocked(stack, job_id, "job.sure")
    stack.machine.clock.advance(60)
    say(stack, job_id, "job.sure")
    stack.machine.run_until_quiet()
    assert_done(stack, job_id, "job.sure")
    assert [len(people.given[f"enrich:{n:05d}"]) for n in range(3)] == [1, 1, 1]


# --- answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"go": "yes"}, "go: 'yes' is not of type 'boolean'"),
        ({}, "'go' is a required property"),
        ({"go": True, "more": 1}, "Additional properties are not allowed"),
        ({"go": True, "why": "x" * LONGEST}, "are the most"),
    ],
)
def test_an_answer_that_does_not_fit_is_kept_with_its_fault_and_the_form_stays_open(
    stack: Stack, people: People, value: Json, fault: str, request: pytest.FixtureRequest
) -> None:
    people.of("classify")
    job_id = stack.run(f"bad-{sorted(value)}-{len(str(value))}")
    before = len(stack.dead())
    say(stack, job_id, "classify.sure", value)
    assert_blocked(stack, job_id, "classify.sure")
    [record] = [each for each in stack.dead() if each["reason"] == "bad_answer"][-1:]
    assert len(stack.dead()) == before + 1
    assert fault in next(each["detail"] for each in stack.dead() if fault in each["detail"])
    assert record["function"] == "answer"
    say(stack, job_id, "classify.sure")
    assert_done(stack, job_id, "classify.sure")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"job_id": "0" * 26}, "unknown_job"),
        ({"form": "classify.other"}, "unknown_form"),
        ({"form": "../x"}, "bad_shape"),
        ({"answer": [1]}, "bad_shape"),
        ({"kind": "request"}, "unknown_envelope"),
        ({"v": 2}, "unknown_version"),
    ],
)
def test_what_is_no_answer_is_refused_with_a_reason(
    stack: Stack, people: People, change: Json, reason: str
) -> None:
    people.of("classify")
    job_id = stack.run(f"no-answer-{reason}-{sorted(change)}")
    given = {"job_id": job_id, "form": "classify.sure", "answer": GO} | change
    with within(stack), pytest.raises(RefusedError) as refused:
        answer(read_answer(given))
    assert refused.value.reason == reason
    before = len(stack.dead())
    say(stack, job_id, "classify.sure", more=change)
    assert len(stack.dead()) == before + 1
    assert stack.head(job_id)["status"] == "blocked"


@contextmanager
def within(stack: Stack) -> Iterator[None]:
    """As a person at the command line."""
    with stack.machine.inside("answer"):
        yield


def test_the_first_valid_answer_stands(stack: Stack, people: People) -> None:
    people.of("classify")
    job_id = stack.run("first")
    say(stack, job_id, "classify.sure", {"go": True, "why": "first"})
    say(stack, job_id, "classify.sure", {"go": False, "why": "second"})
    assert people.given["classify"][1:] == [{"sure": {"go": True, "why": "first"}}]
    assert_done(stack, job_id, "classify.sure")


def test_a_job_that_has_ended_takes_no_answer(stack: Stack, people: People) -> None:
    people.of("classify")
    job_id = stack.run("ended")
    with within(stack):
        recovery.cancel(job_id, "no longer wanted")
    before = len(stack.dead())
    say(stack, job_id, "classify.sure")
    assert [len(stack.dead()) - before, stack.head(job_id)["status"]] == [1, "cancelled"]
    stack.machine.clock.advance_to(float(form_of(stack, job_id, "classify.sure")["deadline"]))
    stack.machine.invoke("sweep", {})
    item = form_of(stack, job_id, "classify.sure")
    assert (item["state"], "due" in item) == ("expired", False)
    assert stack.head(job_id)["status"] == "cancelled"


def test_a_form_of_newer_code_is_left_alone(stack: Stack, people: People) -> None:
    people.of("classify")
    job_id = stack.run("newer")
    key = (f"JOB#{job_id}", "FORM#classify.sure")
    stack.edit(key, v=VERSION + 1)
    say(stack, job_id, "classify.sure")
    assert form_of(stack, job_id, "classify.sure")["state"] == "open"
    stack.machine.clock.advance_to(float(form_of(stack, job_id, "classify.sure")["deadline"]))
    stack.machine.invoke("sweep", {})
    assert form_of(stack, job_id, "classify.sure")["state"] == "open"
    assert stack.head(job_id)["status"] == "blocked"
    stack.edit(key, v=VERSION)  # the newer code came, and gave it back


# --- nobody answers --------------------------------------------------------------------------------------------


def pass_deadline(stack: Stack, job_id: str, form: str) -> None:
    stack.machine.clock.advance_to(float(form_of(stack, job_id, form)["deadline"]))
    stack.machine.invoke("sweep", {})
    stack.machine.invoke("sweep", {})
    stack.machine.run_until_quiet()


def test_a_job_that_nobody_answers_fails_says_so_once_and_can_be_opened_again(
    stack: Stack, people: People
) -> None:
    people.of("classify")
    job_id = stack.run("nobody")
    pass_deadline(stack, job_id, "classify.sure")
    head = stack.head(job_id)
    assert (head["status"], head["reason"]) == ("failed", "nobody_answered")
    assert "classify.sure" in head["detail"]
    assert said(stack, job_id, "classify.sure") == ["asked", "expired"]
    assert stack.notices(job_id) == ["asked", "ended"]
    before = len(stack.dead())
    say(stack, job_id, "classify.sure")
    assert len(stack.dead()) == before + 1  # too late
    with within(stack):
        assert recovery.reopen(job_id) is not None
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "blocked"
    assert said(stack, job_id, "classify.sure") == ["asked", "expired", "asked"]
    say(stack, job_id, "classify.sure")
    assert stack.head(job_id)["status"] == "done"
    assert said(stack, job_id, "classify.sure") == ["asked", "expired", "asked", "answered"]


def test_a_part_that_nobody_answers_fails_and_the_join_goes_by_its_policy(
    stack: Stack, people: People
) -> None:
    people.of("enrich:00001")
    job_id = stack.run("nobody-part", 3)
    pass_deadline(stack, job_id, "enrich:00001.sure")
    assert stack.ending(job_id).parts["enrich:00001"] == "nobody_answered"
    assert stack.head(job_id)["status"] == "done"


# --- whoever dies when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize(
    ("asks", "scope"), [("classify", "work"), ("enrich:00001", "work"), ("enrich:00001", "job")]
)
def test_a_worker_that_dies_while_it_asks_loses_nothing(
    stack: Stack, people: People, asks: str, scope: Scope, phase: Phase
) -> None:
    function = "classify" if asks == "classify" else "enrich_record"
    form = f"{asks}.sure" if scope == "work" else "job.sure"
    people.of(asks, form=sure(scope, seconds=7 * 86_400))
    died = 0
    for number in range(1, 40):
        job_id = stack.ask(f"dies-{asks}-{scope}-{phase}-{number}", 2)
        try:
            with stack.dying_at(nth(function, number), phase):
                stack.machine.run_until_quiet(limit=20_000)
        except AssertionError:
            break
        died += 1
        stack.machine.clock.advance(400)
        stack.machine.run_until_quiet(limit=20_000)
        assert stack.notices(job_id) == ["asked"]
        say(stack, job_id, form)
        assert_done(stack, job_id, form)
    assert died > 5


def nth(function: str, number: int) -> Callable[[Call], bool]:
    seen: list[Call] = []

    def where(call: Call) -> bool:
        if call.function == function:
            seen.append(call)
        return len(seen) == number and call.function == function

    return where


def settle(stack: Stack) -> None:
    stack.machine.clock.advance(FIRST_LOOK)
    stack.machine.invoke("sweep", {})
    stack.machine.run_until_quiet(limit=20_000)


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize(("asks", "scope"), [("classify", "work"), ("enrich:00001", "work")])
def test_whoever_takes_the_answer_may_die(
    stack: Stack, people: People, asks: str, scope: Scope, phase: Phase
) -> None:
    """By message the answer comes again; given by hand it does not, and sweep sees to what follows."""
    form = f"{asks}.sure" if scope == "work" else "job.sure"
    people.of(asks, form=sure(scope, seconds=7 * 86_400))
    for by_hand in (False, True):
        # What follows is the same for each kind of work: by hand it is enough to see one.
        if by_hand and asks != "classify":
            break
        for number in range(1, 40):
            job_id = stack.run(f"answer-{asks}-{scope}-{phase}-{by_hand}-{number}", 2)
            stack.send("answer", {"job_id": job_id, "form": form, "answer": GO})
            try:
                with stack.dying_at(nth("answer", number), phase):
                    stack.machine.step()
                    if by_hand:
                        stack.take_away("answer")
                    stack.machine.run_until_quiet()
            except AssertionError:
                break
            if by_hand:
                stack.machine.clock.advance(400)
                stack.take_away("answer")
                settle(stack)
                if form_of(stack, job_id, form)["state"] == "open":
                    say(stack, job_id, form)
            else:
                stack.machine.clock.advance(400)
                stack.machine.run_until_quiet()
            assert_done(stack, job_id, form)
        assert number > 5


@pytest.mark.parametrize(
    ("asks", "scope"), [("classify", "work"), ("enrich:00001", "work"), ("enrich:00001", "job")]
)
def test_an_answer_that_comes_while_the_work_is_being_put_aside_is_not_missed(
    stack: Stack, people: People, asks: str, scope: Scope
) -> None:
    function = "classify" if asks == "classify" else "enrich_record"
    form = f"{asks}.sure" if scope == "work" else "job.sure"
    people.of(asks, form=sure(scope))
    tried = 0
    for number in range(1, 40):
        job_id = stack.ask(f"race-{asks}-{scope}-{number}", 2)
        person = Hasty(stack, job_id, form, nth(function, number))
        remove = stack.machine.on_call(person.observe)
        stack.machine.run_until_quiet(limit=20_000)
        remove()
        if not person.met:
            break
        tried += person.answered
        if not person.answered:
            say(stack, job_id, form)
        assert_done(stack, job_id, form)
    assert tried >= 2


class Hasty:
    """Answers a form before a certain call of the worker that asks it, if it is asked by then."""

    def __init__(self, stack: Stack, job_id: str, form: str, here: Callable[[Call], bool]) -> None:
        self.stack, self.here, self.met, self.answered = stack, here, False, False
        self.given = {"job_id": job_id, "form": form, "answer": GO}

    def observe(self, phase: Phase, call: Call) -> None:
        if phase != "before" or self.met or not self.here(call):
            return
        self.met = True
        item = self.stack.item(f"JOB#{self.given['job_id']}", f"FORM#{self.given['form']}")
        if item is not None and item["state"] == "open":
            self.answered = True
            with within(self.stack):
                answer(read_answer(self.given))


# --- what waits when a job is opened again ----------------------------------------------------------------------


def test_a_part_that_waits_when_its_job_fails_goes_on_when_it_is_opened_again(
    stack: Stack, people: People
) -> None:
    people.needs = busy
    job_id = stack.ask("reopened", 2)
    part = (f"JOB#{job_id}#enrich#000", "PART#00001")
    for _ in range(200):
        if (stack.item(*part) or {}).get("wake", 0) >= 2:
            break
        if stack.machine.step() is None:
            stack.machine.clock.advance(60)
    stack.machine.clock.advance_to(float(stack.head(job_id)["deadline"]))
    stack.machine.invoke("sweep", {})
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["reason"] == "deadline"
    people.of()
    with within(stack):
        assert recovery.reopen(job_id) is not None
    stack.machine.run_until_quiet()
    assert stack.head(job_id)["status"] == "done"


def busy(run: Run) -> None:
    if run.part == 1:
        raise ThrottledError(wait=500.0)
