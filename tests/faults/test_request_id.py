"""Without the request id, asking twice does everything twice: seen by `stafette prove`, with the rule switched off."""

import pytest

from local.prove.checks import breaks
from local.prove.prover import proving
from stafette.core import messages
from stafette.relay import intake
from tests.faults.test_mutations import scenario

pytestmark = pytest.mark.slow


def test_without_the_request_id_asking_twice_does_everything_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_message(tenant: str, request_id: str | None, message_id: str) -> str:
        return messages.job_id(tenant, None, message_id)

    with proving(scenario(times=2)) as prover:
        undisturbed = prover.undisturbed()
        assert set(undisturbed.course.acted.values()) == {1}
        monkeypatch.setattr(intake, "job_id", by_message)
        told = [str(each) for each in breaks(undisturbed, prover.play(()))]
    acted = [each for each in told if each.startswith("doubled: ") and "was asked for" in each]
    assert len(acted) == 4, told  # two effects of two jobs, none of them the one that was asked for
