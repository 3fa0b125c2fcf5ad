"""What `stafette prove` says and how it ends: its command line, and scenarios that prove nothing."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from local.prove.course import Scenario
from local.prove.prover import proving
from local.prove.runner import Bench, NotDoneError
from tests.support import ticket


def test_a_scenario_that_does_not_get_done_proves_nothing() -> None:
    refused = ticket("refused", 0)
    refused["input"] = {}
    with proving(Scenario("refused", (refused,))) as prover:
        with pytest.raises(NotDoneError, match="undisturbed"):
            Bench(prover)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "die:act:1"], "is no fault"),
        (["no-such-flow"], "cannot be read"),
    ],
)
def test_what_cannot_be_proved_is_refused_with_the_reason(arguments: list[str], says: str) -> None:
    ran = CliRunner().invoke(app, ["prove", *arguments])
    assert ran.exit_code == 2
    assert says in " ".join(ran.stderr.split())


@pytest.mark.slow
def test_a_message_of_ones_own_is_proved_at_one_fault(tmp_path: Path) -> None:
    event = tmp_path / "mine.json"
    event.write_text(json.dumps(ticket("mine", 0)))
    ran = CliRunner().invoke(app, ["prove", str(event), "--only", "die-after:classify:4"])
    assert ran.exit_code == 0, ran.output
    assert "mine: " in ran.stdout
    assert ["all", "1", "0", "0", "0"] in [line.split()[:5] for line in ran.stdout.splitlines()]
    never = CliRunner().invoke(app, ["prove", str(event), "--only", "die-after:classify:400"])
    assert never.exit_code == 2
    assert "never came to die-after:classify:400" in " ".join(never.stderr.split())


def test_request_that_no_queue_takes_is_told_of(tmp_path: Path) -> None:
    event = tmp_path / "large.json"
    event.write_text(json.dumps({"input": {"text": "x" * 2_000_000}}))
    only = ("--processes", "1", "--only", "die-before:act:1")
    ran = CliRunner().invoke(app, ["prove", str(event), *only])
    assert (ran.exit_code, "AWS refused SendMessage" in ran.output) == (2, True)
