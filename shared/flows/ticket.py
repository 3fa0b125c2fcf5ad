"""The ticket flow: a customer's text is labelled, enriched from its records, answered, and acted upon."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1, max_length=100_000)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Record(_Data):
    """One order, invoice or document that a ticket comes with."""

    kind: Literal["order", "invoice", "document"] = "document"
    id: Annotated[str, Field(min_length=1, max_length=200)]
    text: Annotated[str, Field(max_length=100_000)] = ""


class Customer(_Data):
    """Who wrote the ticket."""

    name: str | None = None
    email: str | None = None


class Ticket(_Data):
    """What a customer wrote, and what comes with it: none to 1,000 records, and references to attachments."""

    text: Text
    customer: Customer = Customer()
    records: Annotated[list[Record], Field(max_length=1_000)] = []
    attachments: Annotated[list[str], Field(max_length=100)] = []


class Classified(_Data):
    """The labels of a ticket."""

    category: Literal["card", "payment", "transfer", "account", "identity", "fees", "other"]
    urgency: Literal["low", "normal", "high"]
    confidence: Annotated[float, Field(ge=0, le=1)]
    reason: str


class Question(_Data):
    """One part of the fan-out: a record, and what the customer wants to know."""

    record: Record
    ticket: str


class Found(_Data):
    """What one record says to the ticket."""

    relevant: bool
    summary: str


class Finding(_Data):
    """What was found in a record, or why nothing was."""

    record: str
    summary: str


class Enriched(_Data):
    """The relevant records in their order, and how many could not be read."""

    findings: list[Finding]
    read: int
    failed: int


class Draft(_Data):
    """The reply as it will be sent, and the title of a follow-up to open, if any."""

    subject: str
    body: str
    follow_up: str | None


class Acted(_Data):
    """Where the outside took note of the reply and of the follow-up."""

    reply: str
    follow_up: str | None = None
