"""Agents by what their files say: who there is, with which model, and what stands around their calls; or by use."""

from typing import Annotated

import typer
from rich.table import Table

from cli.cost import MOST_DAYS, MOST_JOBS
from cli.stack import FAILED, connected, console, on_stack, stop
from local import costs, show
from local.costs import Costs
from stafette import clock
from stafette.agent import definition

_DAY = 86_400


@on_stack
def agents(
    usage: Annotated[
        bool, typer.Option("--usage", help="How work is spread over them, on a stack.")
    ] = False,
    days: Annotated[
        float, typer.Option(min=0, max=MOST_DAYS, help="How far back --usage looks.")
    ] = 30,
    most: Annotated[
        int, typer.Option("--jobs", min=1, max=MOST_JOBS, help="The newest that --usage looks at.")
    ] = 1_000,
) -> None:
    """List the agents of this checkout, or what they did. Exit code 1: a file is wrong, and which."""
    if usage:
        with connected():
            found = costs.read("agent", clock.now() - days * _DAY, most, costs.memories())
        out = console()
        out.print(used(found))
        stopped = f"; it stopped at the {most} newest: --jobs takes more" if found.stopped else ""
        out.print(f"{found.total.jobs} jobs of the last {days:g} days{stopped}")
        return
    try:
        console().print(table())
    except definition.DefinitionError as error:
        stop(str(error), FAILED)


def used(found: Costs) -> Table:
    """One line an agent that was asked, those that were asked most first."""
    table = show.grid(
        *("agent", ">calls", ">share", ">failed", ">retries", ">fallbacks", ">cache hits"),
        *(">in", ">read", ">written", ">out", ">cost", ">median latency"),
    )
    total = found.total.usage.calls
    groups = sorted(found.groups.items(), key=lambda each: (-each[1].usage.calls, each[0]))
    for name, group in groups:
        usage = group.usage
        latency = "-" if usage.latency_ms is None else f"{usage.latency_ms} ms"
        counts = (usage.failed, usage.retries, usage.fallbacks, usage.hits)
        tokens = (usage.input, usage.cache_read, usage.cache_write, usage.output)
        table.add_row(
            show.line(name, 40),
            str(usage.calls),
            f"{usage.calls / total:.0%}" if total else "-",
            *map(str, (*counts, *tokens)),
            show.usd(usage.cost_micro),
            latency,
        )
    return table


def table() -> Table:
    """One line an agent, sorted by name.

    Raises:
        DefinitionError: a file is wrong; says which and where.
    """
    found = show.grid(
        "agent", "model", "tools", "falls back on", ">confidence", ">cache", "capabilities", "for"
    )
    for name in definition.names():
        agent = definition.load(name)
        found.add_row(
            agent.name,
            agent.model + (f" ({agent.effort})" if agent.effort else ""),
            ", ".join(agent.tools) or "-",
            " -> ".join(each.name for each in definition.chain(name)[1:]) or "-",
            "-" if agent.confidence is None else f"{agent.confidence:.2f}",
            show.seconds(agent.cache) if agent.cache else "-",
            ", ".join(agent.capabilities) or "-",
            show.line(agent.description, 60),
        )
    return found
