"""The recorded result of a measurement, and what a later one may be held against."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VERSION = 1


class NotComparableError(Exception):
    """Two results are not of the same matter; says in what they differ."""


@dataclass(frozen=True, slots=True)
class Result:
    """A measurement of one agent.

    Attributes:
        agent, field: what was measured.
        version: of the agent's instructions, those behind it included.
        data: tells the lines apart that it was measured on.
        models: who answered.
        offline: whether that was the offline model, which is none.
        figures: by the names of `local.measure.Figures`.
    """

    agent: str
    field: str
    version: str
    data: str
    models: tuple[str, ...]
    offline: bool
    figures: Mapping[str, Any]
    v: int = VERSION


def read(file: Path) -> Result | None:
    """The result in a file; None if there is no such file.

    Raises:
        NotComparableError: it is none.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if value["v"] != VERSION:
            raise NotComparableError(f"{file} is of version {value['v']}, not {VERSION}")
        return Result(**{**value, "models": tuple(value["models"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotComparableError(f"{file} holds no recorded result: {error!r}") from error


def write(file: Path, result: Result) -> None:
    """Puts a result into a file, in the place of the one before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")


def check(before: Result, now: Result) -> list[str]:
    """What else differs between two results that may be held against each other, as sentences.

    Raises:
        NotComparableError: another agent, other lines, or a language model against the offline one.
    """
    for what, old, new in (
        ("agents", before.agent, now.agent),
        ("fields", before.field, now.field),
        ("lines (file, --limit, --seed)", before.data, now.data),
        ("kinds of model, offline and not", before.offline, now.offline),
    ):
        if old != new:
            raise NotComparableError(
                f"the recorded result is of other {what}: {old} there, {new} here"
            )
    told = []
    if before.models != now.models:
        told.append(f"other models: {_listed(before.models)} before, {_listed(now.models)} now")
    if before.version != now.version:
        told.append(f"the agent's instructions changed: {before.version} before, {now.version} now")
    return told


def fall(before: Result, now: Result) -> float:
    """By how much the accuracy fell; negative if it rose."""
    return float(before.figures["accuracy"]) - float(now.figures["accuracy"])


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
