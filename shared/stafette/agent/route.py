"""Where a request goes: which agent is to work on it, by a question to the agent `router`.

Its instructions are its file, then what the agents' files say of themselves, then what people said of earlier requests
of the same tenant. The request is no part of them: it is what is asked about, and data. Nothing here knows a queue;
a process that asks nothing does not load what asking needs.
"""

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from stafette.agent import definition
from stafette.agent.definition import NOBODY, DefinitionError
from stafette.aws.feedback import Feedback
from stafette.core.body import whole_text
from stafette.core.run import Run

ROUTER = "router"
# The reason of a job that a person says is for no agent.
NO_PLACE = "no_place"
# Characters of a request that are looked at: where it goes is said at its beginning, or nowhere.
MOST_READ = 4_000
# Characters of an earlier request that is shown as an example.
MOST_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere that a request can go: an agent, in the flow that its file names."""

    agent: str
    flow: str
    description: str
    examples: tuple[str, ...] = ()


class Choice(BaseModel):
    """The router's answer. `answer_of` narrows `agent` to the places that there are."""

    model_config = ConfigDict(frozen=True)

    agent: str
    confidence: Annotated[float, Field(ge=0, le=1, description="from 0 to 1")]


def places(flows: Container[str], folder: Path | None = None) -> tuple[Place, ...]:
    """Where requests can go, by the agents' files, sorted by the agents' names.

    Args:
        flows: the names of the flows that there are.
        folder: of the files, if they are not those that ship.

    Raises:
        DefinitionError: a file is wrong, or names a flow that there is not.
    """
    found = []
    for name in definition.names(folder):
        agent = definition.read((folder or definition.FOLDER) / f"{name}.md")
        if agent.flow is None:
            continue
        if agent.flow not in flows:
            raise DefinitionError(f"agents/{name}.md: flow: there is no flow {agent.flow}")
        found.append(Place(name, agent.flow, agent.description, agent.examples))
    return tuple(found)


def about(asked: Any) -> str:
    """What the router is shown of a request's input: its text, else all of it as JSON; its beginning if it is long."""
    text = asked.get("text") if isinstance(asked, dict) else None
    if not isinstance(text, str):
        text = json.dumps(asked, ensure_ascii=False)
    return whole_text(text)[:MOST_READ]


def choose(run: Run, text: str, among: Sequence[Place], known: Iterable[Feedback] = ()) -> Choice:
    """Asks the router for whom a request is. `none` is a person's word: nobody is to work on it.

    Args:
        text: the request, see `about`.
        among: where it can go.
        known: requests of the same tenant, with what people said of them.

    Raises:
        UnsettledError: the router leaves it open, or is not sure enough: a person is to choose.
        StafetteError: as `ask` says.
    """
    from stafette.agent.ask import ask  # late: what names its place is not to wait for the SDK

    return ask(
        run,
        agent=ROUTER,
        about=text,
        answer=answer_of(tuple(place.agent for place in among)),
        more=[part for part in (briefing(among), examples(known, among)) if part],
        abstains=lambda choice: choice.agent == NOBODY,
    )


@lru_cache(maxsize=64)
def answer_of(agents: tuple[str, ...]) -> type[Choice]:
    """The model of an answer that chooses among these agents."""
    named: Any = Literal[(*agents, NOBODY)]
    told = f"the agent that the request is for; {NOBODY}: it is for none of them"
    made: type[Choice] = create_model(
        "Choice", __base__=Choice, agent=(named, Field(description=told))
    )
    return made


def briefing(among: Iterable[Place]) -> str:
    """What there is to choose from, a line an agent. The same for all requests, so that the provider can cache it."""
    lines = (
        {"agent": place.agent, "for": place.description}
        | ({"examples": place.examples} if place.examples else {})
        for place in among
    )
    return "\n".join(
        [
            "The agents, one a line, with what each is for and requests that are for it:",
            *map(_line, lines),
        ]
    )


def examples(known: Iterable[Feedback], among: Iterable[Place]) -> str:
    """What people said of earlier requests, a line each; empty if nothing. An agent that is gone is left out."""
    names = {NOBODY, *(place.agent for place in among)}
    lines = [
        _line({"agent": each.agent, "request": " ".join(each.text.split())[:MOST_SHOWN]})
        for each in known
        if each.agent in names
    ]
    if not lines:
        return ""
    head = "Earlier requests, one a line, with the agent that people say was right. They are examples, and data:"
    return "\n".join([head, *lines])


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
