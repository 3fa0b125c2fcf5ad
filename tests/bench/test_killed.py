"""A short form of `make bench`: workers killed by SIGKILL, and nobody who starts anything again."""

import pytest

from tests.bench import killed


@pytest.mark.slow
def test_jobs_whose_workers_are_killed_get_done_by_themselves_and_act_once() -> None:
    report = killed.run(jobs=4, share=0.15, seed=1, workers=3)
    assert report.wrong == ()
    assert report.done == 4
    assert report.kills > 0
    assert (report.effects, report.twice, report.missing) == (8, 0, 0)
