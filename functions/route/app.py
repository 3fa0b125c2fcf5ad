"""route: decides the flow of a request and the agent in it. What names its flow or has one place to go asks nobody."""

from flows import catalog
from flows.catalog import FLOWS, Asked, takers
from stafette.agent.definition import NOBODY
from stafette.agent.route import NO_PLACE, Place, about, choose, places
from stafette.aws import feedback
from stafette.core.errors import PermanentError, UnsettledError
from stafette.core.run import Run
from stafette.relay.stage import Routed, To, stage


@stage(takes="asked", gives="received", then=None)
def route(asked: Asked, run: Run) -> Routed:
    """The input of the request, as its flow knows it."""
    taken = takers(asked)
    among = [place for place in places(FLOWS) if place.flow in taken]
    place = None
    if asked.flow is None and among:
        place = chosen(asked, among, run) if len(among) > 1 else among[0]
    flow = FLOWS[place.flow if place else next(iter(taken))]
    to = To(flow.first, flow=flow.name, agent=place.agent if place else None)
    return Routed(taken[flow.name], to)


def chosen(asked: Asked, among: list[Place], run: Run) -> Place:
    """The place that the router chooses, else the one for the rest, else a person's choice."""
    by_agent = {place.agent: place for place in among}
    try:
        choice = choose(run, about(asked.input), among, feedback.newest(run.tenant))
    except UnsettledError:
        if catalog.REST not in by_agent:
            raise
        return by_agent[catalog.REST]
    if choice.agent == NOBODY:
        raise PermanentError("a person said that the request is for no agent", reason=NO_PLACE)
    return by_agent[choice.agent]


handler = route.handler
