"""How the offline model chooses among labels that its instructions describe: by words in common. No model, no learning.

Instructions may describe labels a line each, as JSON: an object with a field that holds the label and others that hold
text. A word weighs the more the fewer labels it is said of, and a line counts by what it shares with the message, as
the cosine of the two. A label counts by its best lines; its share of that of the first two labels is how sure.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from math import log, sqrt
from typing import Any

Json = dict[str, Any]
Weights = Mapping[str, float]

# Lines of a label that count.
_BEST = 3
# What shares less than this with every label is called none of them, where that can be said.
_LEAST = 0.1
NONE = "none"


@dataclass(frozen=True)
class Described:
    """What instructions say of labels: how much each word weighs, and each line with its label and its length."""

    rare: Weights
    lines: tuple[tuple[str, Weights, float], ...]


def choose(
    field: str, labels: Sequence[str], instructions: str, message: str
) -> tuple[str, float] | None:
    """The label that a message is given, and how sure that is; None where the instructions describe no two labels.

    Args:
        field: of the answer, by which the lines of the instructions name their label.
    """
    known = _described(field, tuple(labels), instructions)
    shares: dict[str, list[float]] = {label: [] for label, _, _ in known.lines}
    if len(shares) < 2:
        return None
    said = {word: known.rare[word] for word in set(_words(message)) if word in known.rare}
    length = sqrt(sum(weight**2 for weight in said.values())) or 1.0
    for label, words, size in known.lines:
        shared = sum(weight * words[word] for word, weight in said.items() if word in words)
        shares[label].append(shared / (length * size))
    best = {label: sum(nlargest(_BEST, found)) / _BEST for label, found in shares.items()}
    (first, most), (_, next_most), *_ = sorted(best.items(), key=lambda each: -each[1])
    if most < _LEAST and NONE in labels:
        return NONE, round(1 - most / _LEAST / 2, 2)
    return first, round(most / (most + next_most), 2) if most else 0.0


@lru_cache(maxsize=8)
def _described(field: str, labels: tuple[str, ...], instructions: str) -> Described:
    texts = [
        (value[field], text)
        for value in _objects(instructions)
        if value.get(field) in labels
        for name, held in value.items()
        if name != field
        for text in (held if isinstance(held, list) else [held])
        if isinstance(text, str)
    ]
    among = len({label for label, _ in texts})
    said_of: dict[str, set[str]] = {}
    for label, text in texts:
        for word in _words(text):
            said_of.setdefault(word, set()).add(label)
    rare = {word: log(1 + among / len(of)) for word, of in said_of.items()}
    lines = []
    for label, text in texts:
        words = {word: rare[word] for word in _words(text)}
        lines.append((label, words, sqrt(sum(weight**2 for weight in words.values())) or 1.0))
    return Described(rare, tuple(lines))


def _objects(text: str) -> Iterator[Json]:
    """The lines of a text that are JSON objects."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def _words(text: str) -> list[str]:
    """Words without an ending that says nothing of the matter."""
    return [
        re.sub(r"(?<=\w{3})(ing|ed|es|s)$", "", word) for word in re.findall(r"\w+", text.lower())
    ]
