"""route: decides the flow of a request. The flow that it names, else the default."""

from pydantic import BaseModel

from flows.catalog import FLOWS, Asked, checked
from stafette.core.run import Run
from stafette.relay.stage import To, stage


def first_stage(value: BaseModel) -> To:
    """Where a request goes, from the flow that its input is a model of."""
    flow = next(flow for flow in FLOWS.values() if isinstance(value, flow.takes))
    return To(flow.first, flow=flow.name)


@stage(takes="asked", gives="received", then=first_stage)
def route(asked: Asked, run: Run) -> BaseModel:
    """The input of the request, as its flow knows it."""
    return checked(asked)


handler = route.handler
