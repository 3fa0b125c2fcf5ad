"""scatter: puts one question to three agents that know nothing of each other, and makes one report of what they say."""

from pydantic import BaseModel

from flows.catalog import Asked
from stafette.agent.ask import ask
from stafette.core.joins import Policy
from stafette.core.run import Run
from stafette.relay.parts import Joined, fan_out

READERS = ("orders", "payments", "terms")


class Question(BaseModel):
    """What one agent is asked."""

    agent: str
    text: str


class Finding(BaseModel):
    """What one agent says."""

    summary: str


class Report(BaseModel):
    """What all of them come to."""

    summary: str


@fan_out(takes="asked", gives="scattered", over="read")
def scatter(asked: Asked, run: Run) -> list[Question]:
    """The same question to each."""
    return [Question(agent=name, text=asked.input["text"]) for name in READERS]


@scatter.join(takes="scattered", gives="gathered", then=None, policy=Policy())
def gather(asked: Asked, found: Joined[Finding], run: Run) -> Report:
    """One call over what was found."""
    lines = [f"- {READERS[part.index]}: {part.value.summary}" for part in found if part.value]
    about = "\n".join([asked.input["text"], "Findings:", *lines])
    return ask(run, agent="reporter", about=about, answer=Report)


handler = scatter.handler
