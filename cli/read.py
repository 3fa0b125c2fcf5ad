"""Requests out of what people have: an event, events line by line, a table with a column `text`, or lines of text."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stafette.core.body import read_json
from stafette.core.errors import RefusedError
from stafette.core.messages import Request, read_request

_OF_REQUEST = ("request_id", "tenant", "flow")


class UnreadableError(Exception):
    """What was given is no request; says where and why."""


def requests(source: str, tenant: str | None, flow: str | None) -> list[Request]:
    """The requests in a file, or with `-` in what comes in.

    Args:
        tenant, flow: take the place of what the requests say themselves.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{source} cannot be read: {error}") from error
    given = {"tenant": tenant, "flow": flow}
    chosen = {name: value for name, value in given.items() if value is not None}
    found = []
    for number, value in _values(text, _kind(source, text)):
        try:
            event = read_json(value) if isinstance(value, str) else value
            if not isinstance(event, dict):
                raise RefusedError("not an object")
            found.append(read_request({**event, **chosen}))
        except RefusedError as error:
            raise UnreadableError(f"{source}, line {number}: {error}") from error
    if not found:
        raise UnreadableError(f"{source} holds no request")
    return found


def _kind(source: str, text: str) -> str:
    suffix = Path(source).suffix.lower()
    if suffix in (".json", ".jsonl", ".csv", ".txt"):
        return suffix
    if _is_object(text):
        return ".json"
    first = next((line for line in text.splitlines() if line.strip()), "")
    if _is_object(first):
        return ".jsonl"
    columns = [name.strip() for name in first.lstrip("\ufeff").split(",")]
    return ".csv" if "text" in columns and len(columns) > 1 else ".txt"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _values(text: str, kind: str) -> Iterator[tuple[int, str | dict[str, Any]]]:
    """Each request with the line that it ends on: JSON as text, else as a value."""
    match kind:
        case ".json":
            yield 1, text
        case ".jsonl":
            yield from _lines(text)
        case ".csv":
            yield from _rows(text)
        case _:
            for number, words in _lines(text):
                yield number, {"input": {"text": words}}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not `splitlines`: JSON may hold U+2028 and the like as they are.
    for number, words in enumerate(text.split("\n"), 1):
        if words.strip():
            yield number, words.strip()


def _rows(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""))
    if "text" not in (rows.fieldnames or ()):
        raise UnreadableError("the table has no column `text`")
    try:
        for row in rows:
            known = {name: row[name] for name in _OF_REQUEST if row.get(name)}
            yield rows.line_num, {**known, "input": {"text": row["text"] or ""}}
    except csv.Error as error:
        raise UnreadableError(f"line {rows.line_num} of the table: {error}") from error
