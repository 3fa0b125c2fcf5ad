"""The bench of the router at a small size: what is measured is not taught, and all are measured alike."""

from pathlib import Path

import pytest

from flows.catalog import FLOWS
from stafette.agent import definition, route
from tests.bench import router
from tests.bench.router import Labels

pytestmark = pytest.mark.skipif(not router.DATA.exists(), reason="the data is not here")


@pytest.fixture(scope="module", params=sorted(router.LIMITS))
def labels(request: pytest.FixtureRequest) -> Labels:
    made: Labels = getattr(router, request.param)(2, seed=3)
    return made


def test_no_measured_line_is_taught_or_shown(labels: Labels) -> None:
    measured = {line.text for line in labels.lines}
    shown = {text for texts in labels.examples.values() for text in texts}
    taught = {line.text for line in labels.train}
    both = measured & taught
    # The public sets hold a few texts twice; those are told of here, and no more.
    assert len(both) <= len(measured) // 100
    assert shown <= taught
    assert {line.label for line in labels.lines} - {None} == set(labels.describes)


def test_labels_become_agents_that_can_be_routed_to(labels: Labels, tmp_path: Path) -> None:
    router.write_agents(tmp_path, labels)
    found = route.places(FLOWS, tmp_path)
    assert [place.agent for place in found] == sorted(labels.describes)
    assert all(place.examples == tuple(labels.examples[place.agent]) for place in found)
    assert [a.name for a in definition.chain("router", tmp_path)] == ["router", "senior_router"]


def test_everybody_is_measured_on_the_same_half() -> None:
    report = router.run(router.clinc150(1, seed=3), limit=60, seed=3)
    assert {row.figures.lines for row in report.rows} == {30}
    assert [row.figures.calls for row in report.rows[2:]] == [0, 0]
    assert report.rows[0].figures.calls == 1
    assert report.rows[1].figures.calls >= 1
    assert all(row.figures.failed == 0 for row in report.rows)
    assert "offline" in report.model
