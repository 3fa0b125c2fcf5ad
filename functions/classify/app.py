"""classify: gives a ticket its category, urgency and confidence."""

from flows.ticket import Classified, Ticket
from stafette.agent.ask import ask
from stafette.agent.guards import room
from stafette.core.run import Run
from stafette.relay.stage import stage


def urgent(labels: Classified) -> dict[str, str] | None:
    """What the world is told at once of an urgent ticket."""
    if labels.urgency != "high":
        return None
    return {"category": labels.category, "urgency": labels.urgency}


@stage(takes="received", gives="classified", then="enrich", notice=urgent, ready=room("classifier"))
def classify(ticket: Ticket, run: Run) -> Classified:
    """The labels of a ticket."""
    return ask(run, agent="classifier", about=ticket.text, answer=Classified)


handler = classify.handler
