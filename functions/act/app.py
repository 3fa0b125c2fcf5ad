"""act: carries out what was drafted: sends the reply, opens the follow-up, each once."""

from flows.ticket import Acted, Draft, Ticket
from stafette.aws.effects import once
from stafette.core.run import Run
from stafette.relay.stage import stage
from tools.outbox import FOLLOW_UP, REPLY


@stage(takes="drafted", gives="acted", then=None)
def act(ticket: Ticket, draft: Draft, run: Run) -> Acted:
    """Both effects, from the stored draft: every try does the same."""
    to = ticket.customer.email
    sent = once(run, REPLY, {"to": to, "subject": draft.subject, "body": draft.body})
    if draft.follow_up is None:
        return Acted(reply=sent.key)
    opened = once(run, FOLLOW_UP, {"title": draft.follow_up, "about": run.job_id})
    return Acted(reply=sent.key, follow_up=opened.key)


handler = act.handler
