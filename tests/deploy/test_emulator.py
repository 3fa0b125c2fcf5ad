"""The emulator that `make deploy-local` stands on: it starts, it keeps others out, and nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.deploy import ROOT
from local.emulator import EmulatorError, _group, emulator

PROGRAM = ROOT / ".venv-ministack" / "bin" / "ministack"
pytestmark = pytest.mark.deploy


def test_nothing_is_left_when_the_context_ends_by_an_error(tmp_path: Path) -> None:
    groups: list[int] = []

    def fails() -> None:
        with emulator(PROGRAM, tmp_path) as aws:
            groups.append(aws.pid)
            assert _group(aws.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not _group(groups[0])


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_an_interrupted_deployment_ends_with_1_and_leaves_no_process(
    sign: signal.Signals, tmp_path: Path
) -> None:
    log = tmp_path / "said"
    with log.open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "local.deploy"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    until = time.monotonic() + 60
    # The build is under way: the emulator runs, and a command of the README does.
    while not _lines_with(str(tmp_path), "sam build"):
        assert time.monotonic() < until
        assert run.poll() is None, log.read_text()
        time.sleep(0.2)
    run.send_signal(sign)
    assert run.wait(60) == 1
    assert "interrupted" in log.read_text()
    assert not _lines_with(str(tmp_path))


def test_a_program_that_is_no_emulator_is_told_with_its_log(tmp_path: Path) -> None:
    program = tmp_path / "false"
    program.write_text("#!/bin/sh\necho cannot\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(EmulatorError, match="cannot"), emulator(program, tmp_path / "place"):
        pass


def _lines_with(place: str, words: str = "") -> list[str]:
    """Processes whose working directory or command line is in `place`; with `words`, whether one says them there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            inside = str((entry / "cwd").readlink()).startswith(place) or place in line
        except OSError:
            continue
        if inside and words in line and line:
            found.append(line)
    return found
