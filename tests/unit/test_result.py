"""A recorded result: kept, read again, and held only against what is of the same matter."""

from dataclasses import replace
from pathlib import Path

import pytest

from local import result
from local.result import NotComparableError, Result

BEFORE = Result("router", "agent", "v1", "d1", ("haiku",), False, {"accuracy": 0.9})


def test_result_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    file = tmp_path / "new" / "result.json"
    assert result.read(file) is None
    result.write(file, BEFORE)
    assert result.read(file) == BEFORE


@pytest.mark.parametrize("text", ["", "[]", '{"v": 2}', '{"v": 1}', "{"])
def test_file_that_is_no_result_is_told_of(tmp_path: Path, text: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(NotComparableError, match=r"result\.json"):
        result.read(file)


@pytest.mark.parametrize(
    "other",
    [{"agent": "classifier"}, {"field": "urgency"}, {"data": "d2"}, {"offline": True}],
    ids=lambda other: next(iter(other)),
)
def test_results_of_different_matters_are_not_compared(other: dict[str, object]) -> None:
    with pytest.raises(NotComparableError, match="the recorded result is of other"):
        result.check(BEFORE, replace(BEFORE, **other))  # type: ignore[arg-type]


def test_another_model_and_other_instructions_are_said() -> None:
    now = replace(BEFORE, models=("sonnet",), version="v2")
    models, instructions = result.check(BEFORE, now)
    assert "haiku before, sonnet now" in models
    assert "v1 before, v2 now" in instructions
    assert result.check(BEFORE, BEFORE) == []


def test_a_fall_is_of_accuracy() -> None:
    now = replace(BEFORE, figures={"accuracy": 0.85})
    assert result.fall(BEFORE, now) == pytest.approx(0.05)
    assert result.fall(now, BEFORE) < 0
