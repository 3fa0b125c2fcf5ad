"""bury: keeps what no stage could take, and sees to it that the job behind it does not hang."""

from stafette.relay.batch import batch_handler
from stafette.relay.recovery import bury

handler = batch_handler("dead", bury)
