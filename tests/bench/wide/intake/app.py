"""intake: a job that is split over as many parts as its request says."""

from stafette.relay.batch import batch_handler
from stafette.relay.intake import take_request

handler = batch_handler("intake", lambda delivery: take_request(delivery, "split", lambda _: None))
