"""Labelled lines: texts with what should be said of each. Reading, choosing a sample, and telling data apart."""

import csv
import io
import json
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

# Lines that are told of when a file is wrong.
_MOST_TOLD = 10
# Characters of a label that are told.
_LONGEST_TOLD = 100


class BadLinesError(Exception):
    """A file of labelled lines is wrong; says which lines and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A text, and what should be said of it; None: nothing should, the agent has to abstain."""

    number: int
    text: str
    label: str | None


def read(file: Path, *, label: str, abstain: Collection[str]) -> list[Line]:
    """The lines of a .jsonl or .csv file.

    Args:
        label: the field or column that holds the label; the text is in `text`.
        abstain: labels that mean that the agent has to abstain; an empty label always does.

    Raises:
        BadLinesError: the file cannot be read, or lines of it are wrong: which, and why.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadLinesError(f"{file} cannot be read: {error}") from error
    rows = _table(text) if file.suffix.lower() == ".csv" else _objects(text)
    found, wrong = [], []
    for number, row in rows:
        fault = row if isinstance(row, str) else _fault(row, label)
        if fault:
            wrong.append(f"line {number}: {fault}")
        else:
            said = row[label]
            found.append(Line(number, row["text"], None if not said or said in abstain else said))
    if not wrong and not found:
        wrong = ["it holds no line"]
    if wrong:
        more = f"; and {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
        raise BadLinesError(f"{file}: {'; '.join(wrong[:_MOST_TOLD])}{more}")
    return found


def check_labels(lines: Collection[Line], known: Collection[str]) -> None:
    """Looks whether every label is one that can be said.

    Raises:
        BadLinesError: which line holds another, and what there is.
    """
    strange = [line for line in lines if line.label is not None and line.label not in known]
    if strange:
        told = "; ".join(
            f"line {e.number}: label {(e.label or '')[:_LONGEST_TOLD]!r}"
            for e in strange[:_MOST_TOLD]
        )
        more = f"; and {len(strange) - _MOST_TOLD} more" if len(strange) > _MOST_TOLD else ""
        labels = ", ".join(sorted(known))
        raise BadLinesError(f"{told}{more}: there is no such answer; there are: {labels}")


def sample(lines: list[Line], limit: int | None, seed: int) -> list[Line]:
    """So many lines, drawn without any order, in the order of the file; all of them without a limit."""
    if limit is None or limit >= len(lines):
        return lines
    return sorted(random.Random(seed).sample(lines, limit), key=lambda line: line.number)


def halves(count: int, seed: int) -> tuple[frozenset[int], frozenset[int]]:
    """The positions of so many lines in two halves, drawn: one to choose a threshold by, one to measure it."""
    drawn = random.Random(seed).sample(range(count), count)
    return frozenset(drawn[: count // 2]), frozenset(drawn[count // 2 :])


def digest(lines: Collection[Line]) -> str:
    """Tells data apart: the same texts with the same labels, in whatever order."""
    each = sorted(json.dumps([line.text, line.label]) for line in lines)
    return sha256("\n".join(each).encode()).hexdigest()[:16]


def _fault(row: dict[str, Any], label: str) -> str | None:
    if not isinstance(row.get("text"), str) or not row["text"].strip():
        return "no text"
    if label not in row:
        return f"no field {label}"
    if not isinstance(row[label], str | None):
        return f"{label} is no text"
    return None


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """JSON lines, each with its number, or what is wrong with it."""
    for number, words in enumerate(text.split("\n"), 1):
        if not words.strip():
            continue
        try:
            value = json.loads(words)
        except (ValueError, RecursionError) as error:
            yield number, f"not JSON: {error}"
            continue
        yield number, value if isinstance(value, dict) else "not an object"


def _table(text: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = rows.fieldnames or ()
        if len({*columns}) < len(columns):
            yield 1, "two columns of one name"
            return
        for row in rows:
            # An empty label has a meaning: a row that was cut off must not pass for one.
            many = "more" if None in row else "fewer" if None in row.values() else ""
            yield rows.line_num, f"{many} cells than columns" if many else row
    except csv.Error as error:
        yield rows.line_num, f"not CSV: {error}"
