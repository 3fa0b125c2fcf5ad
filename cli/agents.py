"""Agents by what their files say: who there is, with which model, and what stands around their calls."""

from rich.table import Table

from cli.stack import FAILED, console, stop
from local import show
from stafette.agent import definition


def agents() -> None:
    """List the agents of this checkout. Exit code 1: a file is wrong, and which."""
    try:
        console().print(table())
    except definition.DefinitionError as error:
        stop(str(error), FAILED)


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
