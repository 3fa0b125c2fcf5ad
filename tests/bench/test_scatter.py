"""The form of `make bench ARGS=scatter`: who is asked at once, who after whom. How long it takes is the bench's."""

import pytest

from tests.bench import scatter


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "one-after-the-other"])
def test_three_agents_are_asked_at_once_and_the_report_once_after_all_of_them(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    for name in scatter.READERS:
        monkeypatch.setitem(scatter.SECONDS, name, 1.0)
    monkeypatch.setitem(scatter.SECONDS, "reporter", 0.1)
    [took] = scatter.taken(1, at_once=at_once)
    *readers, report = took.calls
    assert sorted(call.agent for call in readers) == sorted(scatter.READERS)
    assert report.agent == "reporter"
    assert report.began >= max(call.ended for call in readers)
    together = max(call.began for call in readers) < min(call.ended for call in readers)
    assert together == at_once
