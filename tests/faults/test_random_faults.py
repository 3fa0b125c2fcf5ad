"""Several jobs at once and up to six faults of any kind at places that Hypothesis draws: nothing is lost or doubled.

The draws are the same on every run; a schedule that breaks something is cut down and printed as `prove` takes it.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.prove.checks import breaks
from local.prove.course import Result, Scenario
from local.prove.faults import AT_CALLS, WITH_MESSAGES, Fault, Schedule, write
from local.prove.prover import Prover, proving
from tests.support import ticket

SEED = 4
FUNCTIONS = ("intake", "route", "classify", "enrich", "enrich_record", "draft", "act", "notify")

AT = st.builds(Fault, st.sampled_from(AT_CALLS), st.sampled_from(FUNCTIONS), st.integers(1, 30))
WITH = st.builds(
    Fault,
    st.sampled_from(WITH_MESSAGES),
    st.sampled_from(FUNCTIONS),
    st.integers(1, 4),
    st.just(""),
)
ORDERED = st.builds(
    Fault,
    st.just("meet"),
    st.sampled_from(FUNCTIONS),
    st.integers(1, 4),
    st.text("abAB", min_size=1, max_size=12),
)
FAULTS = st.lists(st.one_of(AT, WITH, ORDERED), min_size=1, max_size=6).map(tuple)


@pytest.fixture(scope="module")
def three_jobs() -> Iterator[tuple[Prover, Result]]:
    """Three tickets at once, with no, one and two records."""
    requests = tuple(ticket(f"job-{n}", n) for n in range(3))
    with proving(Scenario("three", requests), SEED) as prover:
        yield prover, prover.undisturbed()


@pytest.mark.slow
@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(faults=FAULTS)
def test_random_faults_of_several_jobs_lose_and_double_nothing(
    three_jobs: tuple[Prover, Result], faults: Schedule
) -> None:
    prover, undisturbed = three_jobs
    found = prover.play(faults)
    assert breaks(undisturbed, found) == [], write(faults)
