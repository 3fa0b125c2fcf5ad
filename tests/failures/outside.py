"""What tests of effects speak with: an outside that counts what was done to it, runs, notices."""

from typing import Any

from pydantic import BaseModel

from local.invocation import ProcessGone
from stafette import clock
from stafette.aws.effects import Effect
from stafette.core.messages import Notice
from stafette.core.run import Run

JOB = "a" * 26


class Sent(BaseModel):
    """What an effect returns."""

    id: str


class Outside:
    """The outside: counts what was done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.dies = False
        self.looked = 0

    def act(self, key: str, about: Any) -> Sent:
        self.done.append(key)
        if self.dies:
            self.dies = False
            raise ProcessGone
        return Sent(id=f"sent-{len(self.done)}")

    def look_up(self, key: str) -> Sent | None:
        self.looked += 1
        return Sent(id="found") if key in self.done else None

    def effect(self, in_doubt: Any = "ask", name: str = "send") -> Effect[Sent]:
        return Effect(name, Sent, self.act, in_doubt)


def a_run(owner: str, seconds: float = 60.0, job_id: str = JOB) -> Run:
    ends = clock.now() + seconds
    return Run(job_id, "0" * 32, "acme", "ticket", "act", 1, owner, ends)


def a_notice(n: int, job_id: str = JOB) -> str:
    return Notice(
        job_id=job_id,
        tenant="acme",
        to="notify",
        event="ended",
        n=n,
        flow="ticket",
        stage="acted",
        status="done",
    ).to_body()
