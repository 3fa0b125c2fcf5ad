"""Carries follow-ups out, in order: each is accepted before the next one leaves, and what moves the state is last."""

from collections.abc import Iterable
from itertools import groupby

from stafette import clock, trace
from stafette.aws import parts, queues, store
from stafette.core.errors import PermanentError
from stafette.core.follow_ups import Action, Journal, Send, follow_ups
from stafette.core.job import Head, Status
from stafette.core.joins import ranges


def carry(job_id: str, actions: Iterable[Action]) -> None:
    """Carries out what follows from the state of a job. Safe to repeat, whole or in part.

    A job that waits for a message which no queue will ever take fails here, with the reason.

    Raises:
        TransientError: something was not accepted; nothing after it has left.
        PermanentError: a message about a job that has ended will never be sent.
    """
    try:
        _carry(job_id, actions)
    except PermanentError as error:
        ended = store.end(
            job_id, Status.FAILED, clock.now(), reason=error.reason, detail=str(error)
        )
        if ended is None or (ended.status, ended.reason) != (Status.FAILED, error.reason):
            raise
        trace.info("a job failed", job_id=job_id, reason=error.reason)
        _carry(job_id, follow_ups(ended, clock.now()))
        store.rest(ended)


def _carry(job_id: str, actions: Iterable[Action]) -> None:
    for kind, group in groupby(actions, key=type):
        if kind is Journal:
            for action in group:
                if isinstance(action, Journal):
                    store.put_journal(job_id, action)
        else:
            _send([action for action in group if isinstance(action, Send)])


def move_on(head: Head, now: float) -> None:
    """Sends again all that follows from where an active job is: its journal and what it tells may not have left
    either. Last, its next work, or the ranges while some of its parts have not ended."""
    result = store.winning_result(head, head.last) if head.last in head.won else None
    notice = result.notice if result is not None else None
    split = (head.handoff or "").split(":")[0]
    listed = None
    if head.parts and _left(head, split):
        listed = store.split_list(head.job_id, split, head.won[split])
    carry(head.job_id, follow_ups(head, now, parts=listed, notice=notice))


def _left(head: Head, split: str) -> bool:
    counted = parts.counted(head.job_id, split, head.generation)
    return counted.completed < ranges(head.parts or 0)


def _send(sends: list[Send]) -> None:
    for _, group in groupby(sends, key=lambda send: send.to):
        together = list(group)
        if len(together) == 1:
            queues.send(together[0])
            continue
        for refused in queues.send_all(together):
            raise PermanentError(f"{refused.send.to}: {refused.code}", reason="not_sent")
