"""The router on two public sets of labelled requests, beside a plain classifier: how often each is right, for what.

clinc150: ten domains stand as agents, and requests of none of them must be left open. banking77: 77 intents stand as
agents. The agents' files are made of the data in a temporary folder, with a few training lines each as examples; no
line that is measured is among them, nor in what the classifier learns from.
"""

import csv
import json
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from local import baseline, evaluate, labelled, measure, tuning
from local.labelled import Line
from local.measure import Figures
from stafette.agent import definition

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
ROUTERS = ("router", "senior_router")
# Of each set: how many lines are drawn, so that a run takes minutes, and examples for an intent.
LIMITS = {"clinc150": (1_000, 2), "banking77": (400, 3)}


@dataclass(frozen=True)
class Labels:
    """A set of labelled requests.

    Attributes:
        describes: what each label is for.
        examples: training lines of each label, for the agents' files.
        train: all that the classifier may learn from.
        lines: what is measured.
    """

    name: str
    describes: Mapping[str, str]
    examples: Mapping[str, Sequence[str]]
    train: Sequence[Line]
    lines: Sequence[Line]


@dataclass(frozen=True)
class Row:
    """One who decides, over the half of the lines that no threshold was chosen by."""

    who: str
    threshold: float
    figures: Figures


@dataclass(frozen=True)
class Report:
    """What a set came to."""

    name: str
    labels: int
    lines: int
    of: int
    measured: int
    model: str
    offline: bool
    rows: Sequence[Row]


def clinc150(each: int, seed: int) -> Labels:
    """Ten domains; so many examples of each of their fifteen intents."""
    folder = DATA / "clinc150"
    domains = json.loads((folder / "domains.json").read_text(encoding="utf-8"))
    data = json.loads((folder / "intents.json").read_text(encoding="utf-8"))
    domain_of = {intent: domain for domain, intents in domains.items() for intent in intents}
    by_intent = _by_label((text, intent) for text, intent in data["train"])
    drawn = random.Random(seed)
    examples = {
        domain: [text for i in intents for text in drawn.sample(by_intent[i], each)]
        for domain, intents in domains.items()
    }
    train = [Line(n, text, domain_of[i]) for n, (text, i) in enumerate(data["train"], 1)]
    known = [(text, domain_of[intent]) for text, intent in data["val"]]
    rest = [(text, None) for text, _ in data["oos_val"]]
    return Labels(
        "clinc150 val",
        {domain: _about(domain, intents) for domain, intents in domains.items()},
        examples,
        train,
        [Line(n, text, label) for n, (text, label) in enumerate([*known, *rest], 1)],
    )


def banking77(each: int, seed: int) -> Labels:
    """77 intents. The set has no lines of its own to measure by: a fifth of its lines is kept apart for that."""
    with (DATA / "banking77" / "train.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], _name(row["category"])) for row in csv.DictReader(file)]
    drawn = random.Random(seed)
    drawn.shuffle(rows)
    apart = len(rows) // 5
    by_label = _by_label(rows[apart:])
    return Labels(
        "banking77, a fifth kept apart",
        {label: _about(label, []) for label in by_label},
        {label: drawn.sample(texts, min(each, len(texts))) for label, texts in by_label.items()},
        [Line(n, *row) for n, row in enumerate(rows[apart:], 1)],
        [Line(n, *row) for n, row in enumerate(rows[:apart], 1)],
    )


def run_named(name: str, seed: int) -> Report:
    """A set by its name, as the bench runs it."""
    limit, each = LIMITS[name]
    return run({"clinc150": clinc150, "banking77": banking77}[name](each, seed), limit, seed)


def write_agents(folder: Path, labels: Labels) -> None:
    """An agent's file for each label, beside the routers that ship."""
    for name in ROUTERS:
        shutil.copy(ROOT / "shared" / "agents" / f"{name}.md", folder)
    for label, told in labels.describes.items():
        matter = {"name": label, "description": told, "model": "haiku", "flow": "ticket"}
        matter["examples"] = [text[:500] for text in labels.examples[label]]
        (folder / f"{label}.md").write_text(
            f"---\n{yaml.safe_dump(matter, allow_unicode=True)}---\nYou work on it.\n",
            encoding="utf-8",
        )


def run(labels: Labels, limit: int, seed: int, at_once: int = 3) -> Report:
    """Chooses thresholds on one half of a sample, and measures on the other."""
    lines = labelled.sample(list(labels.lines), limit, seed)
    choosing, measuring = labelled.halves(len(lines), seed)
    other = [line for n, line in enumerate(lines) if n in measuring]
    with TemporaryDirectory() as made, evaluate.place(os.environ) as where:
        folder = Path(made)
        write_agents(folder, labels)
        with evaluate.agents_in(folder):
            with evaluate.without_floor("router"):
                first, _ = evaluate.decide(where, evaluate.asking("router"), lines, at_once=at_once)
            floor = tuning.choose([d for n, d in enumerate(first) if n in choosing]).threshold
            for name in ROUTERS:
                evaluate.change(folder / f"{name}.md", {"confidence": floor})
            definition.read.cache_clear()
            chain, models = evaluate.decide(
                where, evaluate.asking("router"), other, at_once=at_once
            )
    rows = [
        Row("router, first answer", floor, _rest(first, measuring, floor)),
        Row("router, with retry and fallback", floor, measure.figures(chain)),
    ]
    few = [Line(0, text, label) for label, texts in labels.examples.items() for text in texts]
    for taught in (few, labels.train):
        plain = baseline.learn(taught)(lines)
        level = tuning.choose([d for n, d in enumerate(plain) if n in choosing]).threshold
        name = f"{baseline.NAME}, of {len(taught):,} lines"
        rows.append(Row(name, level, _rest(plain, measuring, level)))
    return Report(
        labels.name,
        labels=len(labels.describes),
        lines=len(lines),
        of=len(labels.lines),
        measured=len(other),
        model=", ".join(sorted(models)),
        offline=where.offline,
        rows=rows,
    )


def _rest(
    decisions: Sequence[measure.Decision], measuring: Container[int], threshold: float
) -> Figures:
    half = [decision for n, decision in enumerate(decisions) if n in measuring]
    return measure.figures(tuning.at(half, threshold))


def _by_label(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for text, label in rows:
        found[label].append(text)
    return dict(sorted(found.items()))


def _about(label: str, intents: Sequence[str]) -> str:
    told = f"Requests about {label.replace('_', ' ')}"
    of = ", ".join(intent.replace("_", " ") for intent in intents)
    return f"{told}: {of}." if of else f"{told}."


def _name(category: str) -> str:
    """A category as an agent may be called."""
    return category.lower().replace("?", "")
