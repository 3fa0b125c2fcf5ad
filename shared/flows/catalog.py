"""The flows that a request can name, and what intake and route need to know of each."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.ticket import Ticket
from stafette.core.errors import RefusedError
from stafette.core.messages import Inputs, faults


class Asked(BaseModel):
    """What a request asks for, as intake stores it."""

    model_config = ConfigDict(frozen=True)

    flow: str | None = None
    input: Inputs


@dataclass(frozen=True, slots=True)
class Flow:
    """A kind of job: the model of its input, and the function of its first stage."""

    name: str
    takes: type[BaseModel]
    first: str


FLOWS = {flow.name: flow for flow in (Flow("ticket", Ticket, "classify"),)}
DEFAULT = "ticket"


def flow_of(asked: Asked) -> Flow:
    """The flow that a request names, else the default.

    Raises:
        RefusedError: there is no such flow.
    """
    name = asked.flow or DEFAULT
    if name not in FLOWS:
        known = ", ".join(sorted(FLOWS))
        raise RefusedError(f"there is no flow {name}; there are: {known}", reason="unknown_flow")
    return FLOWS[name]


def checked(asked: Asked) -> BaseModel:
    """The input of a request as its flow's model.

    Raises:
        RefusedError: no such flow, or an input that does not fit it (`bad_shape`), with where and what.
    """
    try:
        return flow_of(asked).takes.model_validate(asked.input, strict=True)
    except ValidationError as error:
        raise RefusedError(f"input.{faults(error)}", reason="bad_shape") from error
