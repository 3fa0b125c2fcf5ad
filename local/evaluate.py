"""Runs an agent on labelled lines: the real chain of calls, guards included, on a private machine, several at once.

A line is a job of its own. What a job would wait for as state, a decision here waits for in place.
"""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, get_origin
from unittest.mock import patch

import yaml
from pydantic import BaseModel

from flows.catalog import ANSWERS, FLOWS
from local.clock import RealClock
from local.demo import SILENT, own_model
from local.files import replace
from local.functions import model_access
from local.labelled import Line
from local.machine import Machine
from local.measure import Decision
from local.model import serve_model
from stafette import clock
from stafette.agent import definition, route
from stafette.agent.ask import ask
from stafette.agent.definition import NOBODY
from stafette.aws import keys, store, table
from stafette.core import retry
from stafette.core.errors import UnsettledError
from stafette.core.job import DEADLINE, Head, Status
from stafette.core.messages import job_id, trace_id
from stafette.core.run import Run

_FENCE = re.compile(r"^---[ \t]*\n", re.MULTILINE)
# The function in whose place agents are asked: it has the environment of one that asks a model.
PLACE, HANDOFF = "route", "eval"
# Seconds that one line may take, waits included.
LONGEST = 900.0
# So many decisions that all come to nothing end the run: something is wrong with more than the lines.
MOST_FAILED = 10


class NotMeasurableError(Exception):
    """The agent cannot be measured like that; says why."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How an agent is asked, and what can come of it.

    Attributes:
        field: of the answer, whose value is the label.
        labels: what can be said; the one that leaves it open is not among them.
        ask: asks about a text.
        version: changes with anything that its instructions say.
    """

    agent: str
    field: str
    labels: tuple[str, ...]
    ask: Callable[[Run, str], BaseModel]
    version: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where decisions are made: a machine, and who answers there."""

    machine: Machine
    model: str
    offline: bool


# --- what is asked -------------------------------------------------------------------------------------------


def asking(agent: str, field: str | None = None) -> Asking:
    """How the agent of this name is asked, by its files as they are now.

    Raises:
        NotMeasurableError: there is no such answer, or none of a fixed set of values.
        DefinitionError: a file is wrong.
    """
    chain = definition.chain(agent)
    versions = [each.version for each in chain]
    if agent == route.ROUTER:
        among = route.places(FLOWS)
        if len(among) < 2:
            raise NotMeasurableError(
                f"there is nothing to choose: agents with a flow: {len(among)}"
            )
        answer = route.answer_of(tuple(place.agent for place in among))
        versions.append(route.briefing(among))
        ask_it: Callable[[Run, str], BaseModel] = lambda run, text: route.choose(  # noqa: E731
            run, route.about({"text": text}), among
        )
    elif agent in ANSWERS:
        answer = ANSWERS[agent]
        ask_it = lambda run, text: ask(run, agent=agent, about=text, answer=answer)  # noqa: E731
    else:
        known = ", ".join(sorted({*ANSWERS, route.ROUTER}))
        raise NotMeasurableError(f"nobody says what {agent} answers; known are: {known}")
    name, labels = _closed(answer, field, agent)
    version = sha256(json.dumps(versions).encode()).hexdigest()[:16]
    kept = tuple(label for label in labels if label != NOBODY)
    return Asking(agent, name, kept, ask_it, version)


def _closed(answer: type[BaseModel], field: str | None, agent: str) -> tuple[str, tuple[str, ...]]:
    """The field of an answer that has a fixed set of values, and these."""
    found = {
        name: values
        for name, info in answer.model_fields.items()
        if (values := _values(info.annotation))
    }
    if field is None and len(found) == 1:
        return next(iter(found.items()))
    if field in found:
        return field, found[field]
    has = f"has {', '.join(found)}: choose with --field" if found else "has none"
    raise NotMeasurableError(
        f"the answer of {agent} must have one field with a fixed set of values; it {has}"
    )


def _values(kind: Any) -> tuple[str, ...]:
    if kind is bool:
        return "false", "true"
    values = get_args(kind) if get_origin(kind) is Literal else ()
    return values if values and all(isinstance(value, str) for value in values) else ()


@contextmanager
def agents_in(folder: Path | None) -> Iterator[None]:
    """Lets the library read agents' files from another folder."""
    with patch.object(definition, "FOLDER", folder or definition.FOLDER):
        yield


@contextmanager
def without_floor(agent: str) -> Iterator[None]:
    """Lets an agent's first answer stand, however sure it is: no floor, nobody behind it."""
    definition.chain(agent)  # its file is there, and right
    with TemporaryDirectory() as folder:
        shutil.copytree(definition.FOLDER, folder, dirs_exist_ok=True)
        change(Path(folder) / f"{agent}.md", {"confidence": None, "fallback": None})
        with agents_in(Path(folder)):
            yield


def change(file: Path, fields: Mapping[str, Any]) -> None:
    """Sets fields of an agent's front matter, or takes them out (None); every other line stays as it is.

    Raises:
        NotMeasurableError: a field is not on one line of its own, as `name: value`.
        UnwritableError: the file cannot be written.
    """
    text = file.read_text(encoding="utf-8")
    [start, *_, end] = (found.end() for found in islice(_FENCE.finditer(text), 2))
    end = text.rindex("---", start, end)
    lines = text[start:end].splitlines(keepends=True)
    for name, value in fields.items():
        new = [] if value is None else [yaml.safe_dump({name: value})]
        at = next((n for n, line in enumerate(lines) if line.startswith(f"{name}:")), len(lines))
        lines[at : at + 1] = new
    kept = {
        name: value for name, value in yaml.safe_load(text[start:end]).items() if name not in fields
    }
    wanted = kept | {name: value for name, value in fields.items() if value is not None}
    if _front_matter("".join(lines)) != wanted:
        raise NotMeasurableError(
            f"agents/{file.name}: write {', '.join(fields)} on one line each, as `name: value`"
        )
    replace(file, text[:start] + "".join(lines) + text[end:])


def _front_matter(lines: str) -> Any:
    """What lines of front matter say, None if they are not YAML. A name that stands twice says nothing twice."""
    try:
        names = [key.value for key, _ in yaml.compose(lines).value]
        return yaml.safe_load(lines) if len({*names}) == len(names) else None
    except (yaml.YAMLError, AttributeError):
        return None


# --- where, and how ------------------------------------------------------------------------------------------


@contextmanager
def place(environment: Mapping[str, str]) -> Iterator[Place]:
    """A machine for decisions, with the model that the environment names, else the offline one."""
    access, own = model_access(environment), own_model(environment)
    with ExitStack() as stack:
        if own is None:
            model = stack.enter_context(serve_model())
            access |= {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
        where = access.get("MODEL_BASE_URL") or access.get("ANTHROPIC_BASE_URL")
        told = "offline" if own is None else where or "the Anthropic API"
        options: Any = {"clock": RealClock(), "model_access": access, "environment": SILENT}
        yield Place(stack.enter_context(Machine(keep=False, **options)), told, own is None)


def decide(
    where: Place,
    asked: Asking,
    lines: Sequence[Line],
    abstain: frozenset[str] = frozenset(),
    at_once: int = 4,
    progress: Callable[[], None] = lambda: None,
) -> tuple[list[Decision], set[str]]:
    """What the agent says of each line, in their order, and the models that answered.

    Args:
        abstain: values of the field that leave the line open, besides a person's form.
        progress: called after each line.

    Raises:
        NotMeasurableError: the first decisions all came to nothing.
    """
    models: set[str] = set()
    failed: list[str] = []
    stop = threading.Event()

    def one(line: Line) -> Decision | None:
        if stop.is_set():
            return None
        made, by = _decision(where.machine, asked, line, abstain)
        models.update(by)
        failed.append(made.failed or "")
        first = failed[:MOST_FAILED]
        if len(first) == min(MOST_FAILED, len(lines)) and all(first):
            stop.set()
        progress()
        return made

    # Contexts, and with them what a function's environment is, belong to one thread each.
    with ThreadPoolExecutor(at_once) as workers:
        found = list(workers.map(one, lines))
    if stop.is_set():
        raise NotMeasurableError(f"the first {len(failed)} decisions came to nothing: {failed[0]}")
    return [each for each in found if each is not None], models


def _decision(
    machine: Machine, asked: Asking, line: Line, abstain: frozenset[str]
) -> tuple[Decision, set[str]]:
    job, until = job_id("eval", f"{time.monotonic_ns()} {line.number}", ""), clock.now() + LONGEST
    with machine.inside(PLACE):
        store.start(_head(job))
    attempt = failures = 0
    while True:
        attempt += 1
        with machine.inside(PLACE) as context:
            run = _run(job, attempt, context.deadline)
            said = partial(_said, machine, job, line)
            try:
                value = asked.ask(run, line.text)
            except UnsettledError:
                return said(label=None)
            except Exception as error:
                failures += 1
                match retry.fate(error, failures, clock.chance()):
                    case retry.Later(seconds, counts) if clock.now() + seconds < until:
                        failures -= not counts
                    case retry.Bug():
                        raise
                    case _:
                        reason = getattr(error, "reason", "bug")
                        return said(label=None, failed=f"{reason}: {error}")
            else:
                label = _label(getattr(value, asked.field))
                sure = getattr(value, "confidence", None)
                return said(label=None if label in {*abstain, NOBODY} else label, sure=sure)
        clock.sleep(seconds)


def _said(
    machine: Machine,
    job: str,
    line: Line,
    *,
    label: str | None,
    sure: float | None = None,
    failed: str | None = None,
) -> tuple[Decision, set[str]]:
    calls = list(table.query(keys.job(job), "CALL#"))
    made = Decision(
        line,
        label,
        sure,
        failed,
        calls=sum(not call.get("cache") for call in calls),
        cost_micro=sum(call["cost_micro"] for call in calls),
        latency_ms=sum(call["latency_ms"] for call in calls),
    )
    return made, {f"{c['model']}{' (offline)' * (c['provider'] == 'offline')}" for c in calls}


def _label(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _head(job: str) -> Head:
    now = clock.now()
    return Head(
        job_id=job,
        tenant="eval",
        flow="",
        stage="asked",
        last="intake",
        status=Status.ACTIVE,
        next=PLACE,
        handoff=HANDOFF,
        won={"intake": 1},
        fingerprint="",
        created=now,
        moved=now,
        deadline=now + DEADLINE,
    )


def _run(job: str, attempt: int, ends: float) -> Run:
    owner = f"eval-{attempt}"
    return Run(job, trace_id(job), "eval", "", HANDOFF, attempt, owner, ends)
