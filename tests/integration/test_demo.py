"""The demo as a person starts it: in a process of its own."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.model import OfflineModel, error

STRANGE = 'O\'Neil said "pay" `id` $HOME [red]twice[/red] ünï 🎉 \x1b[31m'
_MODEL = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL_BASE_URL", "TICKET")


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name not in _MODEL}
    return subprocess.run(
        [sys.executable, "-m", "local.demo", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**plain, "PYTHONUTF8": "1", "COLUMNS": "160", **environment},
        cwd=Path(__file__).resolve().parents[2],
        timeout=120,
    )


def test_demo_shows_a_ticket_from_start_to_end_and_nothing_twice() -> None:
    began = time.monotonic()
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "not a language model" in done.stdout
    stages = ["asked", "received", "classified", "enriching", "enriched", "drafted", "acted"]
    assert re.findall(rf" s  ({'|'.join(stages)}) ", done.stdout) == stages
    assert "parts 4/4" in done.stdout
    assert "category payment" in done.stdout
    assert "6 calls" in done.stdout
    assert "Nothing ran twice." in done.stdout
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("way", ["option", "environment"])
def test_ticket_of_ones_own_is_shown_as_it_was_written(way: str) -> None:
    done = demo("--text", STRANGE) if way == "option" else demo(TICKET=STRANGE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'O\'Neil said "pay" `id` $HOME [red]twice[/red] ünï 🎉' in done.stdout
    assert "\x1b" not in done.stdout
    assert "Nothing ran twice." in done.stdout


def test_job_that_fails_is_told_with_its_reason(offline: OfflineModel) -> None:
    offline.script(error(400, "invalid_request_error"))
    done = demo(MODEL_BASE_URL=offline.base_url, ANTHROPIC_API_KEY="offline")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "because ANTHROPIC_API_KEY is set" in done.stdout
    assert "The job did not get done." in done.stdout
