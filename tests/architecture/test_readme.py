"""The README's commands are run as they stand, and the tests that it names exist."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FAILURE_MODES = (ROOT / "docs" / "failure-modes.md").read_text()
BLOCKS = re.findall(r"^```(sh[^\n]*)\n(.*?)^```", README, re.M | re.S)


def lines(kind: str) -> list[str]:
    return [line for found, text in BLOCKS if found == kind for line in text.splitlines() if line]


def run(command: str, timeout: int = 120) -> str:
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_two_commands_are_what_a_newcomer_runs_first() -> None:
    assert lines("sh") == ["make demo", "make test"]
    for command in lines("sh"):
        run(f"{command} --dry-run")


def test_measurements_are_run_as_they_are_shown() -> None:
    recorded, tuned, other = lines("sh measure")
    for command in (recorded, recorded, other):
        shown = run(command)
        assert "36 lines" in shown
        assert "not a language model" in shown
    assert "confidence: 0." in run(tuned)


def test_a_proof_is_run_as_it_is_shown() -> None:
    whole, one = lines("sh prove")
    run(f"{whole} --dry-run")
    assert ["all", "1", "0", "0", "0"] in [line.split()[:5] for line in run(one).splitlines()]


def test_the_demo_runs_and_shows_the_way_of_a_ticket() -> None:
    shown = run("COLUMNS=120 make demo")
    for word in ("classified", "enriching", "enriched", "drafted", "acted", "not a language model"):
        assert word in shown
    for name in ("classify classifier", "enrich:00000 record_reader", "6 calls"):
        assert figures(README, name) == figures(shown, name)


def figures(text: str, begins: str) -> list[str]:
    """What the first line that begins so says of tokens and cost; how long it took is of one run."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    line = next(line for line in lines if line.startswith(begins))
    return re.findall(r"\$[\d.]+|(?<= )\d+(?!\S)(?! ms)", line)


def test_the_demo_takes_any_text() -> None:
    text = """it's "5 $HOME `x` [red] 100% ü;"""
    done = subprocess.run(
        ["make", "demo"],
        cwd=ROOT,
        env={**os.environ, "TICKET": text},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "acted" in done.stdout


def test_the_commands_on_a_running_machine_do_what_they_say() -> None:
    here = ROOT / ".stafette" / "local.json"
    if here.exists():
        pytest.skip("a machine is running already")
    machine = subprocess.Popen(
        ["make", "local", "ARGS=--port 0"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(300):
            if here.exists():
                break
            time.sleep(0.1)
        for command in lines("sh local"):
            run(command)
    finally:
        os.killpg(machine.pid, signal.SIGTERM)
        machine.wait(30)
    assert not here.exists()


@pytest.mark.parametrize(
    "place", sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", README + FAILURE_MODES)))
)
def test_a_test_that_is_named_exists(place: tuple[str, str]) -> None:
    path, name = place
    assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\b((?:docs/)?[\w/-]+\.md)\b", README))))
def test_a_document_that_is_named_exists(link: str) -> None:
    assert (ROOT / link).exists()
