"""Carries follow-ups out, in order: each is accepted before the next one leaves, and what moves the state is last."""

from collections.abc import Iterable
from itertools import groupby

from stafette.aws import queues, store
from stafette.core.errors import PermanentError
from stafette.core.follow_ups import Action, Journal, Send


def carry(job_id: str, actions: Iterable[Action]) -> None:
    """Carries out what follows from the state of a job. Safe to repeat, whole or in part.

    Raises:
        TransientError: something was not accepted; nothing after it has left.
    """
    for kind, group in groupby(actions, key=type):
        if kind is Journal:
            for action in group:
                if isinstance(action, Journal):
                    store.put_journal(job_id, action)
        else:
            _send([action for action in group if isinstance(action, Send)])


def _send(sends: list[Send]) -> None:
    for _, group in groupby(sends, key=lambda send: send.to):
        together = list(group)
        if len(together) == 1:
            queues.send(together[0])
            continue
        for refused in queues.send_all(together):
            raise PermanentError(f"{refused.send.to}: {refused.code}", reason="not_sent")
