"""notify: tells the world what happened to a job, on a topic with attributes to filter on."""

from stafette.aws import queues
from stafette.aws.topic import publish
from stafette.core.errors import RefusedError
from stafette.core.messages import Notice
from stafette.relay.batch import Delivery, Return, batch_handler


def tell(delivery: Delivery) -> Return | None:
    """Publishes one notice, once."""
    notice = queues.from_body(delivery.body)
    if not isinstance(notice, Notice):
        raise RefusedError("notify takes notices", reason="wrong_queue")
    publish(notice, delivery.owner, delivery.ends)
    return None


handler = batch_handler("notify", tell)
