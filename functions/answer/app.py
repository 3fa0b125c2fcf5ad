"""answer: takes what a person answers to a form, and sends the work on that waits for it."""

from stafette.relay.answers import take_answer
from stafette.relay.batch import batch_handler

handler = batch_handler("answer", take_answer)
