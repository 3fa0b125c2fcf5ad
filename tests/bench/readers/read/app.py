"""read: asks one agent."""

from pydantic import BaseModel

from stafette.agent.ask import ask
from stafette.core.run import Run
from stafette.relay.parts import part


class Question(BaseModel):
    """What one agent is asked."""

    agent: str
    text: str


class Finding(BaseModel):
    """What it says."""

    summary: str


@part()
def read(question: Question, run: Run) -> Finding:
    """One call."""
    return ask(run, agent=question.agent, about=question.text, answer=Finding)


handler = read.handler
