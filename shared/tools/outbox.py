"""The outside of the sample flow: an outbox in the bucket that a mailer or a ticket system reads from.

An object is put only if none is there, so the outbox honours the key that an effect hands it, and can be asked for it.
Put your own mailer in the place of `_deliver`, and say with `in_doubt` what it can do after a try that was cut off.
"""

import json
from typing import Any

from pydantic import BaseModel

from stafette import settings
from stafette.aws import clients
from stafette.aws.effects import Effect
from stafette.aws.failures import FAILED_CALLS, code, translated


class Delivered(BaseModel):
    """Where the outside took note of an action."""

    key: str


def _deliver(key: str, what: Any) -> Delivered:
    place = _place(key)
    try:
        clients.s3().put_object(
            Bucket=settings.bucket(),
            Key=place,
            Body=json.dumps(what, ensure_ascii=False).encode(),
            ContentType="application/json",
            IfNoneMatch="*",
        )
    except FAILED_CALLS as error:
        if code(error) != "PreconditionFailed":
            raise translated(error) from error
    return Delivered(key=place)


def _look_up(key: str) -> Delivered | None:
    place = _place(key)
    try:
        clients.s3().get_object(Bucket=settings.bucket(), Key=place)
    except FAILED_CALLS as error:
        if code(error) in ("NoSuchKey", "404", "AccessDenied"):
            return None
        raise translated(error) from error
    return Delivered(key=place)


def _place(key: str) -> str:
    return f"outbox/{key}.json"


REPLY = Effect("send_reply", Delivered, _deliver, in_doubt=_look_up)
FOLLOW_UP = Effect("open_follow_up", Delivered, _deliver, in_doubt=_look_up)
