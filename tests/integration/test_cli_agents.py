"""`stafette agents`: every agent's file in one line, and a wrong one by name."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from stafette.agent import definition

FILE = "---\nname: a\ndescription: Helps.\nmodel: haiku\n{more}\n---\nYou help.\n"


def test_agents_that_ship_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = CliRunner().invoke(app, ["agents"])
    assert told.exit_code == 0
    assert all(name in told.output for name in definition.names())


def test_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text(FILE.format(more="fallback: nobody"))
    monkeypatch.setattr(definition, "FOLDER", tmp_path)
    told = CliRunner().invoke(app, ["agents"])
    assert told.exit_code == 1
    assert "agents/a.md: fallback: there is no agent nobody" in " ".join(told.output.split())
