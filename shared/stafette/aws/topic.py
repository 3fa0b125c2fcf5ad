"""The topic that hears of jobs."""

import json
from typing import Any

from pydantic import BaseModel

from stafette import settings
from stafette.aws import clients, keys
from stafette.aws.effects import Effect, once
from stafette.aws.failures import FAILED_CALLS, translated
from stafette.core.messages import Notice, trace_id
from stafette.core.run import Run


class Published(BaseModel):
    """The topic's receipt."""

    message_id: str


def publish(notice: Notice, owner: str, ends: float) -> Published:
    """Publishes a notice once. A try that was cut off is repeated: subscribers know a notice by its `notice_id`."""
    about = f"_{notice.form}" if notice.form else ""
    name = f"notify_{notice.event}_{notice.n}{about}"
    effect = Effect(name, Published, _publish, in_doubt="retry")
    run = Run(
        job_id=notice.job_id,
        trace_id=trace_id(notice.job_id),
        tenant=notice.tenant,
        flow=notice.flow,
        handoff="notify",
        attempt=notice.n,
        owner=owner,
        ends=ends,
    )
    return once(run, effect, notice)


def _publish(key: str, notice: Notice) -> Published:
    pk, _ = keys.head(notice.job_id)
    message = {
        "notice_id": key,
        "job_id": notice.job_id,
        "trace_id": trace_id(notice.job_id),
        "event": notice.event,
        "stage": notice.stage,
        "status": notice.status,
        "reason": notice.reason,
        "results": {"table": settings.table(), "pk": pk, "prefix": "RESULT#"},
    }
    known = {
        "event": notice.event,
        "tenant": notice.tenant,
        "flow": notice.flow,
        "status": notice.status,
        **notice.attributes,
    }
    attributes: Any = {
        name: {"DataType": "String", "StringValue": value} for name, value in known.items() if value
    }
    try:
        answer = clients.sns().publish(
            TopicArn=settings.topic(), Message=json.dumps(message), MessageAttributes=attributes
        )
    except FAILED_CALLS as error:
        raise translated(error) from error
    return Published(message_id=answer["MessageId"])
