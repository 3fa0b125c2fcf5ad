"""What is done with a message, for every state that its job can be in.

* A claim goes through exactly when `claimable` says so: the write's condition and the core agree on any head.
* Who holds the lease works; a finished work resends its follow-ups while the job is still where it brought it.
* Nobody who does not hold the lease works.
"""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from stafette.aws import clients, keys, store, table
from stafette.core.decide import (
    Again,
    Blocked,
    Decision,
    Drop,
    GiveUp,
    Refuse,
    Resend,
    Wait,
    Work,
    claimable,
    decide,
    decide_part,
)
from stafette.core.job import MOST_FAILURES, VERSION, Head, Part, Status
from stafette.core.messages import Handoff, PartWork

JOB = "0" * 26
NOW = 1_000_000.0
ME = "me"


def head(**changes: Any) -> Head:
    known: dict[str, Any] = {
        "job_id": JOB,
        "tenant": "acme",
        "flow": "ticket",
        "stage": "received",
        "status": Status.ACTIVE,
        "next": "classify",
        "handoff": "classify",
        "last": "route",
        "won": {"intake": 1, "route": 1},
        "fingerprint": "f",
        "created": NOW,
        "moved": NOW,
        "deadline": NOW + 86_400,
    }
    return Head(**(known | changes))


def handoff(**changes: Any) -> Handoff:
    known = {"to": "classify", "handoff": "classify", "stage": "received", "wake": 0}
    return Handoff(job_id=JOB, tenant="acme", **(known | changes))


def part_work(**changes: Any) -> PartWork:
    known: dict[str, Any] = {
        "to": "r",
        "split": "enrich",
        "stage": "enriching",
        "join_to": "enrich",
    }
    known |= {"index": 3, "total": 10, "input": {}}
    return PartWork(job_id=JOB, tenant="acme", **(known | changes))


HELD = {"owner": ME, "lease": NOW + 60}
THEIRS = {"owner": "another", "lease": NOW + 60}


@pytest.mark.parametrize(
    ("standing", "message", "expected"),
    [
        (None, {}, Refuse("unknown_job")),
        (head(v=VERSION + 1), {}, Refuse("unknown_version")),
        (head(**HELD), {}, Work()),
        (head(**HELD, failures=MOST_FAILURES), {}, Work()),
        (head(**HELD, failures=MOST_FAILURES + 1), {}, GiveUp("attempts_exhausted")),
        (head(**THEIRS), {}, Wait(NOW + 60)),
        (head(), {}, Wait(NOW)),
        (head(owner=ME, lease=NOW), {}, Wait(NOW)),
        (head(), {"handoff": "route", "stage": "asked"}, Resend()),
        (head(), {"handoff": "intake", "stage": "asked"}, Drop()),
        (head(), {"handoff": "draft", "stage": "enriched"}, Refuse("wrong_stage")),
        (head(), {"stage": "enriched"}, Refuse("wrong_stage")),
        (head(wake=1, not_before=NOW + 9), {}, Again()),
        (head(wake=1, not_before=NOW + 9), {"wake": 1}, Again()),
        (head(wake=2), {"wake": 1}, Again()),
        (head(wake=3), {"wake": 1}, Drop()),
        (head(wake=1), {"wake": 2}, Refuse("unknown_wake")),
        (head(status=Status.FAILED), {}, Resend()),
        (head(status=Status.CANCELLED), {}, Resend()),
        (head(status=Status.CANCELLED), {"handoff": "route", "stage": "asked"}, Resend()),
        (head(status=Status.BLOCKED, form="classify.sure"), {}, Blocked("classify.sure")),
        (head(status=Status.BLOCKED), {"handoff": "route", "stage": "asked"}, Resend()),
        (head(last="reopen"), {"handoff": "route", "stage": "asked"}, Drop()),
    ],
)
def test_a_message_for_a_stage(
    standing: Head | None, message: dict[str, Any], expected: Decision
) -> None:
    assert decide(standing, handoff(**message), ME, NOW) == expected


WAITING = head(stage="enriching", handoff="enrich:join", next="enrich", parts=10)


@pytest.mark.parametrize(
    ("job", "standing", "expected"),
    [
        (None, None, Refuse("unknown_job")),
        (head(v=VERSION + 1), None, Refuse("unknown_version")),
        (WAITING, None, Work()),
        (WAITING, Part(index=3, **HELD), Work()),
        (WAITING, Part(index=3, **HELD, failures=MOST_FAILURES + 1), GiveUp("attempts_exhausted")),
        (WAITING, Part(index=3, **THEIRS), Wait(NOW + 60)),
        (WAITING, Part(index=3, done=True), Resend()),
        (WAITING, Part(index=3, reason="failed"), Resend()),
        (WAITING, Part(index=3, wake=1, not_before=NOW + 5), Again()),
        (WAITING, Part(index=3, wake=2), Again()),
        (WAITING, Part(index=3, wake=2, **THEIRS), Wait(NOW + 60)),
        (WAITING, Part(index=3, wake=1, form="enrich:00003.sure"), Blocked("enrich:00003.sure")),
        (WAITING, Part(index=3, form="enrich:00003.sure", reason="failed"), Resend()),
        (head(stage="enriched"), Part(index=3, done=True), Drop()),
        (WAITING.model_copy(update={"status": Status.CANCELLED}), None, Drop()),
        (
            WAITING.model_copy(update={"status": Status.BLOCKED, "form": "job.cap"}),
            None,
            Blocked("job.cap"),
        ),
    ],
)
def test_a_message_for_a_part(job: Head | None, standing: Part | None, expected: Decision) -> None:
    assert decide_part(job, standing, part_work(), ME, NOW) == expected


moments = st.sampled_from([0.0, NOW - 1, NOW, NOW + 0.000001, NOW + 60])
heads = st.builds(
    head,
    status=st.sampled_from(Status),
    stage=st.sampled_from(["received", "classified"]),
    handoff=st.sampled_from(["classify", "enrich", None]),
    last=st.sampled_from(["route", "classify", "reopen"]),
    won=st.sampled_from([{"route": 1}, {"route": 1, "classify": 2}]),
    owner=st.sampled_from([None, "me", "another"]),
    lease=moments,
    not_before=moments,
    wake=st.integers(0, 2),
    attempt=st.integers(0, 9),
    failures=st.integers(0, MOST_FAILURES + 1),
    v=st.sampled_from([VERSION, VERSION + 1]),
)
handoffs = st.builds(
    handoff,
    handoff=st.sampled_from(["classify", "enrich", "route"]),
    stage=st.sampled_from(["received", "classified", "asked"]),
    wake=st.integers(0, 2),
)


@pytest.fixture(scope="module")
def stored() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("TABLE", "stafette")
        clients.forget()
        boto3.client("dynamodb").create_table(
            TableName="stafette",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk")],
            KeySchema=[
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "sk", "KeyType": "RANGE"},
            ],
        )
        yield
    clients.forget()


@given(standing=heads, message=handoffs, bare=st.booleans())
@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_claim_goes_through_exactly_when_the_core_says_so(
    stored: None, standing: Head, message: Handoff, bare: bool
) -> None:
    item = standing.model_dump(mode="json", exclude_none=True)
    if bare:  # a head that was never claimed may lack what says zero
        item = {k: v for k, v in item.items() if v or k not in ("lease", "not_before", "wake")}
    table.put(keys.head(JOB), item)
    found = store.claim(message, "a-new-owner", NOW + 30, NOW)
    assert found is not None
    took = found.owner == "a-new-owner"
    assert took is claimable(standing, message, NOW)
    assert found.attempt == standing.attempt + took
    decision = decide(found, message, "a-new-owner", NOW)
    finished = message.handoff in standing.won
    if not finished:
        assert isinstance(decision, Work | GiveUp) is took
    if not took:
        assert not isinstance(decision, Work | GiveUp)
        assert store.head(JOB) == found
        assert found == Head.from_item({"pk": f"JOB#{JOB}", "sk": "JOB", **item})


def test_the_answer_to_a_claim_may_be_lost_and_the_claim_repeated(stored: None) -> None:
    table.put(keys.head(JOB), head().model_dump(mode="json", exclude_none=True))
    for attempt in (1, 1):
        found = store.claim(handoff(), ME, NOW + 30, NOW)
        assert found is not None
        assert found.attempt == attempt
        assert decide(found, handoff(), ME, NOW) == Work()
