"""intake: a question that several agents are asked about at once."""

from stafette.relay.batch import batch_handler
from stafette.relay.intake import take_request

handler = batch_handler(
    "intake", lambda delivery: take_request(delivery, "scatter", lambda _: None)
)
