"""Work that waits for a person: the form is asked, the work is put aside, and an answer sends it on.

The worker writes the form, then puts the work aside, then looks at the form again; whoever answers writes the answer,
then sends the work on if it was put aside. Whichever comes last sees the other: no answer is missed.
"""

from stafette import clock, trace
from stafette.aws import forms, parts, store
from stafette.core.asked import Asked, State, asked
from stafette.core.follow_ups import Send, of_form
from stafette.core.form import Form
from stafette.core.job import Head, Status
from stafette.core.messages import PartWork
from stafette.core.run import Run
from stafette.relay.carry import carry, move_on


def block(form: Form, run: Run, head: Head, wake: int) -> None:
    """Lets the stage that this worker holds wait for a person."""
    standing = forms.ask(asked(form, run, head, None, clock.now()))
    head = forms.block(run, head, standing, wake=wake + 1)
    tell(head, standing.id)


def block_part(form: Form, run: Run, head: Head, work: PartWork) -> None:
    """Lets the part that this worker holds, or with it all of its job, wait for a person."""
    standing = forms.ask(asked(form, run, head, work, clock.now()))
    if standing.scope == "work":
        parts.block(work, run, standing.id)
        forms.allow(head, standing)
    else:
        forms.block_all(head, standing)
        parts.put_back(work, run)
    tell(head, standing.id)


def tell(head: Head, form_id: str) -> None:
    """Says that a form was asked, and sends its work on if it has been answered meanwhile."""
    form = forms.get(head.job_id, form_id)
    if form is None:
        return
    trace.info("a person is asked", job_id=head.job_id, form=form.id, state=form.state.value)
    carry(head.job_id, of_form(form, head))
    if form.state is State.ANSWERED:
        go_on(form)


def go_on(form: Asked) -> None:
    """Sends the work on that a form was answered for. Safe to repeat."""
    now = clock.now()
    if form.work is None:
        head = forms.unblock(form, now)
        if head is not None and head.status is Status.ACTIVE:
            move_on(head, now)
        return
    head, standing = store.head(form.job_id), parts.unblock(form.work, form.id)
    if head is not None and not standing.ended:
        changes = {"generation": head.generation, "wake": standing.wake}
        carry(form.job_id, (Send(form.work.model_copy(update=changes)),))
