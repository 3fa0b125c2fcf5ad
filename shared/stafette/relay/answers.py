"""A person's answer: checked against the form, written once, and the work that waited for it sent on."""

import json
from typing import Any

from jsonschema import Draft202012Validator

from stafette import clock, trace
from stafette.aws import forms, queues, store
from stafette.core import asked
from stafette.core.asked import Asked, State
from stafette.core.errors import RefusedError
from stafette.core.follow_ups import of_form
from stafette.core.job import known
from stafette.core.messages import Answer, UnknownVersionError, read_answer
from stafette.relay.batch import Delivery, Return
from stafette.relay.carry import carry
from stafette.relay.forms import go_on

# Bytes of an answer as JSON.
LONGEST = 32_768
_MOST_FAULTS = 10


def take_answer(delivery: Delivery) -> Return | None:
    """Takes one message from a person or from a system that speaks for one.

    Raises:
        RefusedError: the body is no answer, or no answer that this form can take.
    """
    value = queues.from_outside(delivery.body)
    if value is not None:
        answer(read_answer(value))
    return None


def answer(given: Answer) -> Asked:
    """Answers a form, and sends its work on. The first valid answer stands: it is what every later one gets back.

    Raises:
        RefusedError: no such job or form (`unknown_job`, `unknown_form`), the job has ended (`job_ended`), the answer
            comes too late (`too_late`) or is not what the form asks for (`bad_answer`).
    """
    head, form = store.head(given.job_id), forms.get(given.job_id, given.form)
    if head is None:
        raise RefusedError(f"there is no job {given.job_id}", reason="unknown_job")
    if form is None:
        raise RefusedError(f"job {given.job_id} asks no {given.form}", reason="unknown_form")
    known(head)
    if form.v > asked.VERSION:
        raise UnknownVersionError(f"newer code asked {given.form}")
    if form.state is State.OPEN:
        if head.status.ended:
            raise RefusedError(f"the job is {head.status}: nothing waits", reason="job_ended")
        _check(form, given.answer)
        now = clock.now()
        if form.deadline <= now:
            raise RefusedError(f"{form.id} was open until {form.deadline:.0f}", reason="too_late")
        form = forms.answer(form, given.answer, given.by, now)
    if form.state is not State.ANSWERED:
        raise RefusedError(f"{form.id} was open until {form.deadline:.0f}", reason="too_late")
    trace.info("a person has answered", job_id=form.job_id, form=form.id)
    carry(form.job_id, of_form(form, head))
    go_on(form)
    forms.rest(form)
    return form


def _check(form: Asked, value: dict[str, Any]) -> None:
    size = len(json.dumps(value))
    if size > LONGEST:
        raise RefusedError(f"{size} bytes; {LONGEST} are the most", reason="bad_answer")
    found = sorted(Draft202012Validator(form.answers).iter_errors(value), key=lambda e: e.json_path)
    if found:
        told = [f"{fault.json_path.removeprefix('$.')}: {fault.message[:200]}" for fault in found]
        more = f"; and {len(told) - _MOST_FAULTS} more" if len(told) > _MOST_FAULTS else ""
        raise RefusedError("; ".join(told[:_MOST_FAULTS]) + more, reason="bad_answer")
