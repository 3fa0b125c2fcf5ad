"""intake: takes a request from any sender and starts its job."""

from flows.catalog import Asked, takers
from stafette.core.messages import Request
from stafette.relay.batch import batch_handler
from stafette.relay.intake import take_request


def check(request: Request) -> None:
    """Refuses at the door what no flow can take."""
    takers(Asked(flow=request.flow, input=request.input))


handler = batch_handler("intake", lambda delivery: take_request(delivery, "route", check))
