"""`stafette eval`: how good an agent is on labelled lines, what it costs, and whether it got worse."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli import report
from cli.stack import FAILED, USAGE, console, stop
from local import baseline, evaluate, files, labelled, measure, result, tuning
from local.labelled import BadLinesError, Line
from local.measure import Decision
from local.show import clean
from stafette.agent import definition
from stafette.agent.definition import NOBODY, DefinitionError

# Where failures are written, if nobody says where.
_FAILURES = Path(".stafette") / "eval"
_MOST_COST = 1_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run came to."""

    asked: evaluate.Asking
    decisions: list[Decision]
    models: set[str]
    offline: bool


def command(
    agent: Annotated[str, typer.Argument(metavar="AGENT")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help=".jsonl or .csv: text and label.")],
    field: Annotated[
        str | None, typer.Option(help="Of the answer, where several have a fixed set of values.")
    ] = None,
    label: Annotated[str, typer.Option(help="The field or column of the label.")] = "label",
    abstain: Annotated[
        list[str] | None,
        typer.Option(help=f"A label of lines to abstain from, besides {NOBODY} and an empty one."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="So many lines, drawn.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    at_once: Annotated[int, typer.Option(min=1, max=50, help="Lines at once.")] = 4,
    agents: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Other agents' files.")
    ] = None,
    failures: Annotated[
        Path | None, typer.Option(help=f"Where all failures go. Default: in {_FAILURES}.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Keep the result, compare the last.")
    ] = None,
    fail_on_fall: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Exit code 1 if accuracy fell by more; needs --record."),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose the confidence threshold instead.")
    ] = False,
    wrong_costs: Annotated[
        float,
        typer.Option(
            min=0, max=_MOST_COST, help="With --tune: abstentions that a wrong answer is worth."
        ),
    ] = tuning.WRONG_COSTS,
    write: Annotated[
        bool, typer.Option("--write", help="With --tune: put the threshold into the agent's file.")
    ] = False,
    train: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="TRAIN", help="With --tune: a plain classifier beside."),
    ] = None,
) -> None:
    """Measure an agent on labelled lines, with the model that the environment names, else the offline one.

    Exit code 0: measured, 1: it fell, or could not be measured, 2: wrong lines, or a result of something else.
    """
    if tune and (record or fail_on_fall is not None):
        stop("--tune chooses a threshold: record without it, once that stands in the file", USAGE)
    if not tune and (write or train):
        stop("--write and --baseline need --tune", USAGE)
    if fail_on_fall is not None and record is None:
        stop("--fail-on-fall needs --record", USAGE)
    open_ones = frozenset({NOBODY, *(abstain or ())})
    try:
        # What is wrong with the files shows before a call is paid for.
        before = result.read(record) if record else None
        lines = labelled.sample(labelled.read(file, label=label, abstain=open_ones), limit, seed)
        taught = labelled.read(train, label=label, abstain=open_ones) if train else None
        rival = None if taught is None else _learned(taught)
        with evaluate.agents_in(agents):
            if tune:
                _tune(agent, field, lines, open_ones, seed, at_once, wrong_costs, write, rival)
                return
            definition.chain(agent)  # its name is none of a path
            failures = failures or _FAILURES / f"{agent}-failures.jsonl"
            for file in filter(None, (failures, record)):
                files.ready(file)
            measured = _measure(agent, field, lines, open_ones, at_once, before)
        out = console()
        report.whole(measured.decisions, out)
        _keep_failures([each for each in measured.decisions if not each.right], failures)
        if record is not None:
            _compare(measured, before, record, fail_on_fall)
    except (BadLinesError, result.NotComparableError) as error:
        stop(str(error), USAGE)
    except (evaluate.NotMeasurableError, DefinitionError, files.UnwritableError) as error:
        stop(str(error), FAILED)


def _learned(taught: Sequence[Line]) -> Callable[[Sequence[Line]], list[Decision]]:
    try:
        return baseline.learn(taught)
    except ImportError:
        stop("--baseline needs scikit-learn: pip install scikit-learn", USAGE)


def _measure(
    agent: str,
    field: str | None,
    lines: Sequence[Line],
    open_ones: frozenset[str],
    at_once: int,
    before: result.Result | None = None,
) -> Measured:
    asked = evaluate.asking(agent, field)
    labelled.check_labels(lines, {*asked.labels} - open_ones)
    with evaluate.place(os.environ) as where, _progress(len(lines)) as step:
        if before is not None:
            now = Measured(asked, [], set(), where.offline)
            result.check(before, _result(now, lines, {}))
        report.introduce(asked, len(lines), where, console())
        decisions, models = evaluate.decide(where, asked, lines, open_ones, at_once, step)
        return Measured(asked, decisions, models, where.offline)


def _result(
    measured: Measured, lines: Sequence[Line], figures: dict[str, float | int | None]
) -> result.Result:
    asked = measured.asked
    return result.Result(
        agent=asked.agent,
        field=asked.field,
        version=asked.version,
        data=labelled.digest(lines),
        models=tuple(sorted(measured.models)),
        offline=measured.offline,
        figures=figures,
    )


def _compare(
    measured: Measured, before: result.Result | None, file: Path, most: float | None
) -> None:
    """Holds a result against the one before and keeps it, unless it fell: then the better one stays the measure."""
    out, lines = console(), [each.line for each in measured.decisions]
    now = _result(measured, lines, measure.figures(measured.decisions).as_data())
    if before is not None:
        for difference in result.check(before, now):
            out.print(f"Note: {clean(difference)}")
        report.beside(before, now, out)
        if most is not None and (fell := result.fall(before, now)) > most:
            stop(f"accuracy fell by {fell:.4f}, more than {most}; {file} is as it was", FAILED)
    result.write(file, now)
    out.print(f"recorded in {file}")


def _tune(
    agent: str,
    field: str | None,
    lines: Sequence[Line],
    open_ones: frozenset[str],
    seed: int,
    at_once: int,
    wrong_costs: float,
    write: bool,
    rival: Callable[[Sequence[Line]], list[Decision]] | None,
) -> None:
    if len(lines) < 2:
        raise evaluate.NotMeasurableError("a threshold needs lines to choose and lines to measure")
    with evaluate.without_floor(agent):
        measured = _measure(agent, field, lines, open_ones, at_once)
    if not any(each.sure is not None for each in measured.decisions):
        raise evaluate.NotMeasurableError(f"the answers of {agent} have no confidence")
    rivals = [("first answer of the agent", measured.decisions)]
    if rival is not None:
        rivals.append((baseline.NAME, rival(lines)))
    chosen = report.tuned(rivals, labelled.halves(len(lines), seed), wrong_costs, console())
    print_it = f"confidence: {chosen:.2f}"
    console().print(f"\nFor agents/{agent}.md:\n{print_it}")
    if write:
        evaluate.change(definition.FOLDER / f"{agent}.md", {"confidence": round(chosen, 2)})
        console().print("written")


def _keep_failures(wrong: Sequence[Decision], file: Path) -> None:
    try:
        with file.open("w", encoding="utf-8") as out:
            for each in wrong:
                out.write(json.dumps(report.failure(each)) + "\n")
    except OSError as error:
        raise files.UnwritableError(f"{file} cannot be written: {error}") from error
    if wrong:
        console().print(f"all {len(wrong)} in {file}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    shown = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    ) as bar:
        task = bar.add_task("measuring", total=total)
        yield partial(bar.advance, task)
