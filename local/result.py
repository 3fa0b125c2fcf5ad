"""The recorded result of a measurement, and what a later one may be held against."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from local.files import replace
from stafette.core.messages import faults

VERSION = 1

Figure = Annotated[float | int, Field(allow_inf_nan=False)]


class NotComparableError(Exception):
    """Two results are not of the same matter; says in what they differ."""


@checked(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Result:
    """A measurement of one agent.

    Attributes:
        agent, field: what was measured.
        version: of the agent's instructions, those behind it included.
        data: tells the lines apart that it was measured on.
        models: who answered.
        offline: whether that was the offline model, which is none.
        figures: by the names of `local.measure.Figures`; the accuracy is among them.
    """

    agent: str
    field: str
    version: str
    data: str
    models: tuple[str, ...]
    offline: bool
    figures: Mapping[str, Figure | None]
    v: int = VERSION


_RESULT = TypeAdapter(Result)


def read(file: Path) -> Result | None:
    """The result in a file; None if there is no such file.

    Raises:
        NotComparableError: it is none.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(value, dict) and value.get("v", VERSION) != VERSION:
            raise NotComparableError(f"{file} is of version {value['v']}, not {VERSION}")
        found = _RESULT.validate_python(value)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise NotComparableError(f"{file} holds no recorded result: {faults(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise NotComparableError(f"{file} holds no recorded result: {error}") from error
    if not isinstance(found.figures.get("accuracy"), float | int):
        raise NotComparableError(f"{file} holds no recorded result: it has no accuracy")
    return found


def write(file: Path, result: Result) -> None:
    """Puts a result into a file, in the place of the one before, which stays until the new one is whole.

    Raises:
        UnwritableError: it cannot be written.
    """
    replace(file, json.dumps(asdict(result), indent=2) + "\n")


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
    return float(before.figures["accuracy"] or 0) - float(now.figures["accuracy"] or 0)


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"
