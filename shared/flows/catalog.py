"""The flows that there are, what intake and route need to know of each, and what their agents answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.ticket import Classified, Draft, Found, Ticket
from stafette.core.errors import RefusedError
from stafette.core.messages import Inputs, faults


class Asked(BaseModel):
    """What a request asks for, as intake stores it."""

    model_config = ConfigDict(frozen=True)

    flow: str | None = None
    input: Inputs


@dataclass(frozen=True, slots=True)
class Flow:
    """A kind of job: the model of its input, the function of its first stage, and the agent that works on it where
    routing chose none."""

    name: str
    takes: type[BaseModel]
    first: str
    agent: str


FLOWS = {flow.name: flow for flow in (Flow("ticket", Ticket, "classify", "writer"),)}

# Who takes a request that the router leaves open; with None a person is asked where it goes.
REST: str | None = "writer"

# What each agent with a fixed answer gives. The router's depends on where requests can go: stafette.agent.route.
ANSWERS: Mapping[str, type[BaseModel]] = {
    "classifier": Classified,
    "record_reader": Found,
    "writer": Draft,
    "card_writer": Draft,
    "complaint_writer": Draft,
}


def takers(asked: Asked) -> dict[str, BaseModel]:
    """The input of a request as each flow knows it that takes it: the one that it names, else all that it fits.

    Raises:
        RefusedError: no such flow, or an input that fits none (`bad_shape`), with where and what.
    """
    if asked.flow is not None and asked.flow not in FLOWS:
        known = ", ".join(sorted(FLOWS))
        raise RefusedError(
            f"there is no flow {asked.flow}; there are: {known}", reason="unknown_flow"
        )
    found, wrong = {}, None
    for name in FLOWS if asked.flow is None else (asked.flow,):
        try:
            found[name] = FLOWS[name].takes.model_validate(asked.input, strict=True)
        except ValidationError as error:
            wrong = wrong or error
    if not found and wrong is not None:
        raise RefusedError(f"input.{faults(wrong)}", reason="bad_shape") from wrong
    return found


def agent_of(flow: str, chosen: str | None) -> str | None:
    """The agent that works on a job: the one that was chosen, else its flow's."""
    return chosen or (FLOWS[flow].agent if flow in FLOWS else None)
