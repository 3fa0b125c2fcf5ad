"""Each rule of the protocol is needed: with one of them switched off, `stafette prove` sees what it protects break.

The rule is switched off in the real code, for the length of a test. The same schedule of faults breaks nothing while
the rule stands, so a mutation without effect fails its test.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from boto3.dynamodb.conditions import AttributeBase, ConditionBase

from cli import read as events
from local.demo import EVENTS
from local.prove.checks import breaks
from local.prove.course import Result, Scenario
from local.prove.faults import read
from local.prove.prover import Prover, proving
from stafette.agent import ask
from stafette.aws import calls, effects, table
from stafette.aws.table import ConditionFailedError
from stafette.core.decide import Drop, Resend, Work
from stafette.core.follow_ups import Journal
from stafette.relay import recovery, stage

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch


def scenario(times: int = 1) -> Scenario:
    """The urgent ticket with three records, asked for so many times."""
    [request] = events.requests(str(EVENTS / "urgent.json"), None, None)
    return Scenario("urgent", (request.model_dump(mode="json", exclude_none=True),) * times)


@dataclass(frozen=True)
class Proof:
    prover: Prover
    undisturbed: Result


@pytest.fixture(scope="module")
def proof() -> Iterator[Proof]:
    with proving(scenario()) as prover:
        yield Proof(prover, prover.undisturbed())


# --- the rules, switched off --------------------------------------------------------------------------------------


def no_resend(patch: Patch) -> None:
    _decides(patch, lambda head, decision: Drop() if isinstance(decision, Resend) else decision)


def no_resend_once_done(patch: Patch) -> None:
    def decided(head: Any, decision: Any) -> Any:
        over = head is not None and head.status.ended
        return Drop() if over and isinstance(decision, Resend) else decision

    _decides(patch, decided)


def moving_message_first(patch: Patch) -> None:
    whole = stage.follow_ups

    def turned(*args: Any, **named: Any) -> Any:
        actions = whole(*args, **named)
        moving = [each for each in actions if not isinstance(each, Journal)][-1:]
        return (*moving, *(each for each in actions if each not in moving))

    patch.setattr(stage, "follow_ups", turned)


def no_member_check(patch: Patch) -> None:
    _unguarded(patch, lambda sets, adds: "members" in adds, {"members"})


def no_repeated_report(patch: Patch) -> None:
    update = table.update

    def once_only(*args: Any, **named: Any) -> Any:
        try:
            return update(*args, **named)
        except ConditionFailedError as lost:
            if "members" in (named.get("adds") or {}):
                raise ConditionFailedError(None) from lost  # it does not look how full the shard is
            raise

    patch.setattr(table, "update", once_only)


def no_ledger(patch: Patch) -> None:
    def act(run: Any, effect: Any, about: Any) -> Any:
        return effect.act(f"{run.job_id}/{effect.name}", about)

    patch.setattr(effects, "once", act)


def no_lease(patch: Patch) -> None:
    _unguarded(patch, lambda sets, adds: "owner" in sets, {"lease"})


def no_fence(patch: Patch) -> None:
    _unguarded(patch, lambda sets, adds: "stage" in sets, {"owner", "attempt", "status"})


def no_memory_of_what_was_paid(patch: Patch) -> None:
    patch.setattr(ask, "_earlier", lambda run, asked: iter(()))


def recorded_afterwards(patch: Patch) -> None:
    patch.setattr(calls, "settle", calls.begin)
    patch.setattr(calls, "begin", lambda run, call: None)


def settled_whoever_holds_it(patch: Patch) -> None:
    update = table.update

    def loose(key: Any, *, sets: Any = None, adds: Any = None, **rest: Any) -> Any:
        if "micro" in (adds or {}) and not sets:
            rest["when"] = None
        return update(key, sets=sets, adds=adds, **rest)

    patch.setattr(table, "update", loose)


def _decides(patch: Patch, changed: Callable[[Any, Any], Any]) -> None:
    decide = stage.decide

    def decided(head: Any, *args: Any) -> Any:
        return changed(head, decide(head, *args))

    patch.setattr(stage, "decide", decided)


def _unguarded(patch: Patch, which: Callable[[Any, Any], bool], names: set[str]) -> None:
    """Drops what the condition of some writes says of some attributes."""
    update = table.update

    def loose(
        key: Any, *, sets: Any = None, adds: Any = None, when: Any = None, **rest: Any
    ) -> Any:
        if which(sets or {}, adds or {}):
            when = _without(when, names)
        return update(key, sets=sets, adds=adds, when=when, **rest)

    patch.setattr(table, "update", loose)


def _without(condition: ConditionBase | None, names: set[str]) -> ConditionBase | None:
    """A condition without its terms about some attributes."""
    if condition is None:
        return None
    terms = condition.get_expression()["values"]
    if isinstance(terms[0], AttributeBase):
        return None if terms[0].name in names else condition
    kept = [_without(term, names) for term in terms]
    left = [term for term in kept if term is not None]
    if len(left) == len(terms):
        return type(condition)(*left)
    return left[0] if left else None


# --- what then breaks -----------------------------------------------------------------------------------------------

# The rule, the faults that need it, and what breaks without it: its kind, and words of what prove says.
RULES = [
    (no_resend, "die-after:classify:15", "lost", "stage is 'classified'"),
    (no_resend_once_done, "die-after:act:9", "lost", "notices is ('classified',)"),
    (moving_message_first, "die-after:classify:16", "lost", "EVENT#classify#0001"),
    (no_member_check, "twice:enrich_record:2+die-before:enrich_record:50", "early", "enrich:join"),
    (no_member_check, "twice:enrich_record:2", "lost", "joins: enrich#000 is (4,"),
    (no_repeated_report, "die-after:enrich_record:53", "lost", "stage is 'enriching'"),
    (no_ledger, "die-after:act:2", "doubled", "send_reply.json was asked for 2 times"),
    (no_lease, "meet:classify:1:aaaB", "doubled", "1 model calls more"),
    (no_memory_of_what_was_paid, "die-before:classify:14", "doubled", "1 of the answers"),
    (
        recorded_afterwards,
        "die-after:classify:8",
        "lost",
        "6 model calls were paid for, 5 recorded",
    ),
    (settled_whoever_holds_it, "lose:classify:11", "lost", "BUDGET has booked"),
    (no_fence, "stall:classify:14", "lost", "stage is 'classified'"),
]


@pytest.mark.parametrize(("rule", "faults", "kind", "words"), RULES)
def test_without_the_rule_prove_sees_what_it_protects_break(
    proof: Proof,
    monkeypatch: Patch,
    rule: Callable[[Patch], None],
    faults: str,
    kind: str,
    words: str,
) -> None:
    prover, undisturbed = proof.prover, proof.undisturbed
    assert breaks(undisturbed, prover.play(read(faults))) == []
    rule(monkeypatch)
    prover.functions.unload()  # a function may hold what is replaced
    found = prover.play(read(faults))
    prover.functions.unload()
    told = [str(each) for each in breaks(undisturbed, found)]
    assert [each for each in told if each.startswith(kind) and words in each], told


def test_without_the_rules_nothing_else_changes_for_an_undisturbed_run(
    proof: Proof, monkeypatch: Patch
) -> None:
    for rule in (no_resend, no_resend_once_done, no_repeated_report, no_lease, no_fence):
        with monkeypatch.context() as patch:
            rule(patch)
            assert breaks(proof.undisturbed, proof.prover.play(())) == []


def cancelled(proof: Proof) -> Result:
    """The job is cancelled while its message to act is on its way."""
    moment = next(m for m in reversed(proof.prover.moments) if not m.course.taken["act"])
    proof.prover.take_up(moment)
    [job] = proof.prover.scenario.jobs()
    with proof.prover.inside("sweep"):
        recovery.cancel(job, "tried")
    return proof.prover.go_on()


def test_without_the_status_in_the_claim_a_cancelled_job_still_acts(
    proof: Proof, monkeypatch: Patch
) -> None:
    expected = cancelled(proof)
    assert not expected.course.acted
    assert breaks(expected, cancelled(proof)) == []
    _unguarded(monkeypatch, lambda sets, adds: "lease" in sets, {"status"})
    # What the claim returns is looked at once more: without that look too, the work is done.
    _decides(monkeypatch, lambda head, found: Work() if head and head.owner else found)
    told = [str(each) for each in breaks(expected, cancelled(proof))]
    assert [each for each in told if each.startswith("doubled") and "send_reply" in each], told


def test_the_condition_of_the_claim_alone_keeps_a_cancelled_job_as_it_was(
    proof: Proof, monkeypatch: Patch
) -> None:
    expected = cancelled(proof)
    _unguarded(monkeypatch, lambda sets, adds: "lease" in sets, {"status"})
    told = [str(each) for each in breaks(expected, cancelled(proof))]
    assert told == ["wrong: waits is True, not False"]  # it holds a lease for ever
