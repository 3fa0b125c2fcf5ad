"""enrich_record: what one record says to a ticket; also hands the ranges of a fan-out out."""

from flows.ticket import Found, Question
from stafette.agent.ask import ask
from stafette.agent.guards import room
from stafette.core.run import Run
from stafette.relay.parts import part


@part(ready=room("record_reader"))
def enrich_record(question: Question, run: Run) -> Found:
    """One small model call about one record."""
    record = question.record
    about = f"Ticket:\n{question.ticket}\n\n{record.kind} {record.id}:\n{record.text}"
    return ask(run, agent="record_reader", about=about, answer=Found)


handler = enrich_record.handler
