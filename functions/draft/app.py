"""draft: writes the reply to a ticket, and decides whether a follow-up is opened. It acts on nothing."""

from flows.catalog import FLOWS
from flows.ticket import Classified, Draft, Enriched, Ticket
from stafette.agent.ask import ask
from stafette.agent.guards import room
from stafette.core.run import Run
from stafette.relay.stage import stage

# Findings that are shown to the writer; the rest is counted for it.
SHOWN = 50


@stage(takes="enriched", gives="drafted", then="act", ready=room("writer"))
def draft(ticket: Ticket, labels: Classified, enriched: Enriched, run: Run) -> Draft:
    """The reply, as it will be sent."""
    found = [f"- {f.record}: {f.summary}" for f in enriched.findings[:SHOWN]]
    more = len(enriched.findings) - len(found)
    about = "\n".join(
        [
            f"Category: {labels.category}",
            f"Urgency: {labels.urgency}",
            f"Customer: {ticket.customer.name or 'unknown'}",
            f"Ticket:\n{ticket.text}",
            f"Findings ({enriched.read} records read, {enriched.failed} could not be):",
            *(found or ["- none"]),
            *([f"- and {more} more"] if more > 0 else []),
        ]
    )
    return ask(run, agent=run.agent or FLOWS["ticket"].agent, about=about, answer=Draft)


handler = draft.handler
