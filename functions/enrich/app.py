"""enrich: fans a ticket out over its records, and joins what was found, in order."""

from flows.ticket import Enriched, Finding, Found, Question, Ticket
from stafette.core.joins import Policy
from stafette.core.run import Run
from stafette.relay.parts import Joined, fan_out


@fan_out(takes="classified", gives="enriching", over="enrich_record")
def enrich(ticket: Ticket, run: Run) -> list[Question]:
    """One question to each record."""
    return [Question(record=record, ticket=ticket.text[:2_000]) for record in ticket.records]


# A reply from what could be read is better than none: no failure of a record fails the ticket.
@enrich.join(takes="enriching", gives="enriched", then="draft", policy=Policy.at_least(0))
def join(ticket: Ticket, found: Joined[Found], run: Run) -> Enriched:
    """What the records say."""
    findings = [
        Finding(record=ticket.records[part.index].id, summary=part.value.summary)
        for part in found
        if part.value is not None and part.value.relevant
    ]
    return Enriched(findings=findings, read=found.total - found.failed, failed=found.failed)


handler = enrich.handler
