"""`stafette prove`: shows that no crash, duplicate or reordering loses a job or does something twice."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli import read
from cli.errors import Trouble, explained
from cli.stack import FAILED, USAGE, console, stop
from local import show
from local.demo import EVENTS
from local.prove import faults, plan
from local.prove.course import Scenario
from local.prove.runner import NotDoneError, Report, Verdict, prove

# An urgent ticket that is hard to label, with a record twice: every stage, a side message, a fan-out and two effects;
# and of a model call a retry, a fallback and a hit in the cache.
SAMPLE = "unclear"
_MOST_LINES = 60


def command(
    what: Annotated[
        str, typer.Argument(metavar="[FLOW|FILE]", help="A flow, by its event, or an event.")
    ] = SAMPLE,
    only: Annotated[
        str | None, typer.Option(metavar="FAULTS", help="One schedule: die-after:act:7")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn, and of jitter.")] = 0,
    meetings: Annotated[
        int, typer.Option(min=0, help="Interleavings of two deliveries, per message.")
    ] = plan.MEETINGS,
    twice: Annotated[int, typer.Option(min=0, help="Pairs of deaths.")] = plan.TWICE,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="All pairs of deaths, which are thousands.")
    ] = False,
    drawn: Annotated[int, typer.Option(min=0, help="Random schedules.")] = plan.RANDOM,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Default: one for each processor.")
    ] = None,
) -> None:
    """Prove that a flow survives: run it undisturbed, then with a fault at every call and every message.

    The flow's own code and tools are run, hundreds of times, against moto and the offline model: a tool that reaches
    further than AWS must be pointed at a stand-in. Exit code 0: nothing lost, nothing doubled, 1: something was.
    """
    scenario = _scenario(what)
    out = console()
    try:
        one = faults.read(only) if only is not None else None
        sizes = plan.Sizes(meetings=meetings, twice=None if pairs else twice, random=drawn)
        with _progress(out) as bar:
            task = bar.add_task("proving", total=None)
            report = prove(
                scenario,
                seed=seed,
                sizes=sizes,
                only=one,
                processes=processes,
                progress=lambda done, of: bar.update(task, completed=done, total=of),
            )
    except (NotDoneError, ValueError) as error:
        stop(str(error), USAGE)
    except Trouble as error:
        stop(f"undisturbed, it comes to nothing: {explained(error)}", USAGE)
    _print(report, sizes, what, out)
    if report.failed:
        raise typer.Exit(FAILED)
    if one is not None and not report.rows[0].points:
        stop(f"the run never came to {only}", USAGE)


def _scenario(what: str) -> Scenario:
    file = Path(what)
    if not file.suffix and not file.exists():
        file = EVENTS / f"{what}.json"
    try:
        requests = read.requests(str(file), None, None)
    except read.UnreadableError as error:
        stop(str(error), USAGE)
    bodies = [each.model_dump(mode="json", exclude_none=True) for each in requests]
    return Scenario(
        name=file.stem,
        requests=tuple({"request_id": f"prove-{n}", **body} for n, body in enumerate(bodies)),
    )


def _progress(out: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not out.is_terminal,
    )


def _print(report: Report, sizes: plan.Sizes, what: str, out: Console) -> None:
    out.print(
        f"{report.scenario}: {report.calls} calls of AWS and of the model, "
        f"{report.messages} messages, when nothing disturbs it"
    )
    table = show.grid("fault", ">points", ">lost", ">doubled", ">wrong", ">CPU s", "")
    for row in report.rows:
        counts = (row.points, row.lost, row.doubled, row.wrong, f"{row.seconds:.0f}")
        table.add_row(row.kind, *map(str, counts), plan.about(row.kind, sizes))
    totals = [
        sum(getattr(row, name) for row in report.rows)
        for name in ("points", "lost", "doubled", "wrong")
    ]
    table.add_row("all", *map(str, totals), f"{sum(row.seconds for row in report.rows):.0f}", "")
    out.print(table)
    out.print(f"{report.seconds:.0f} s in all, on {report.processes} processes; seed {report.seed}")
    if report.failed:
        _print_failure(report.failed[0], report, what, out)


def _print_failure(verdict: Verdict, report: Report, what: str, out: Console) -> None:
    out.print(f"\n{len(report.failed)} runs broke something; the shortest: {verdict.schedule}")
    for each in verdict.breaks:
        out.print(f"  {show.clean(each)}")
    lines = list(verdict.trace)
    struck = next((n for n, line in enumerate(lines) if line.startswith("  it ")), 0)
    # From the delivery that the fault struck.
    start = max((n for n in range(struck + 1) if not lines[n].startswith(" ")), default=0)
    out.print("Its trace:")
    for line in lines[start : start + _MOST_LINES]:
        out.print(f"  {show.clean(line)}")
    if len(lines) - start > _MOST_LINES:
        out.print(f"  ... and {len(lines) - start - _MOST_LINES} lines more")
    where = "" if what == SAMPLE else f" {what}"
    out.print(f"Again: stafette prove{where} --only '{verdict.schedule}' --seed {report.seed}")
