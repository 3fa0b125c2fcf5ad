"""The rules by which the offline model reads a customer's text: words, in fixed tables. No model, no learning.

The same text gives the same value. Prose that a rule writes ends in `NOTE`, which says what wrote it.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

NOTE = "(offline model: fixed rules, not a language model)"

# The first that matches is the category; that others match too makes it less sure.
_CATEGORIES = {
    "identity": r"\b(verif(y|ied|ication)(?!.*top)|identi\w+|passport|proof of|selfie|source of \w+"
    r"|(funds?|money) (c[ao]me|is coming|are coming)s? from)",
    "fees": r"\b(fees?|rates?|limits?|max(imum)?|costs?|price\w*|discounts?|expensive|charg(es|ing|e)|surcharge"
    r"|charged? (me )?(for|to|when|extra|more|a|an|an? \S+ for)|extra|pay for)\b(?! (twice|double))",
    "payment": r"\b(refund\w*|twice|double\w*|duplicate\w*|multiple times|atm (gave|gives|only)|withdraw\w*"
    r"|debit(ed)?\b(?! card)|purchase\w*|merchant|seller|payments?|paid|cash (i|from)|item"
    r"|cash(?! or)(?!.*(top|deposit)))",
    "account": r"\b(passcode|password|log ?in|address|(personal|my) details|name|open(ing)?|clos(e|ing)|delet\w+"
    r"|terminate|cancel my account|old|age|children|kids?|countr\w+|currenc\w+|exchange|phone|GBP|USD|EUR|AUD)\b",
    "transfer": r"\b(transf\w+|top(ped|ping)?.?up|beneficiar\w+|recipient\w*|cheques?|checks?\b(?! (my|the))|deposit\w*"
    r"|salary|sen[dt] (me )?money|(add|receive|adding) (money|funds)|balance|google pay|apple pay|bank account)",
    "card": r"\b(cards?|pin|contactless|mastercard|visa|atms?|chip)\b",
}
_URGENCIES = {
    "high": r"\b(stole\w*|lost|theft|thief|fraud\w*|hack\w*|compromis\w+|unauthori[sz]ed|swallow\w*|strand\w+|freeze"
    r"|someone (else|has|is|us\w+|took)|(was|is)n.?t me|not me|did ?n.?t (make|do|approve)|did not (make|do|approve)"
    r"|(don.?t|do not|not) recogni[sz]\w+|gone|can.?t find)",
    "normal": r"\b(not|(did|does|has|have|is|was|wo|ca|could|would)n.?t|declin\w+|fail\w*|pending|still|wrong|missing"
    r"|twice|problem\w*|never|reject\w*|error|block\w*|locked|late|revert\w*|refund\w*|broken?|waiting|issue)\b",
}
_TOPICS = {
    "card": "your card",
    "payment": "your payment",
    "transfer": "your transfer",
    "account": "your account",
    "identity": "your identity check",
    "fees": "the fees",
    "other": "your question",
}


def category(text: str) -> str:
    return next(iter(_matches(text)), "other")


def urgency(text: str) -> str:
    found = (name for name, words in _URGENCIES.items() if re.search(words, text, re.I))
    return _stated("urgency", text, ("low", "normal", "high")) or next(found, "low")


def confidence(text: str) -> float:
    return {0: 0.3, 1: 0.9, 2: 0.75}.get(len(_matches(text)), 0.6)


def reason(text: str) -> str:
    words = " and ".join(f"“{found}”" for found in list(_matches(text).values())[:2])
    return f"The ticket says {words}. {NOTE}" if words else f"No known word is in it. {NOTE}"


def relevant(text: str) -> bool:
    """Whether ticket and record share a number, or two words of weight."""
    ticket, record = _ticket_and_record(text)
    shared = {word for word in _words(ticket) if word in _words(record)}
    return not ticket or len(shared) > 1 or any(word[-1].isdigit() for word in shared)


def summary(text: str) -> str:
    _, _, record = _ticket_and_record(text)[1].partition("\n")
    record = " ".join(re.sub(r'[{}\[\]"]', " ", record).split())
    return f"The record says: {short(record, 300) or 'nothing'}. {NOTE}"


def subject(text: str) -> str:
    return f"About {_topic(text)}"


def body(text: str) -> str:
    """A reply of a few sentences: what it is about, what was found, what happens next."""
    found = [short(line, 300).rstrip(".") for line in _findings(text)[:3]]
    facts = "Here is what we found. " + " ".join(f"{line}." for line in found)
    nothing = "We have found nothing in our records about it yet."
    coming = "A colleague looks at it now, and we write to you again within one working day."
    done = "If anything is still open, answer this message."
    return "\n\n".join(
        [
            f"Hello,\n\nthank you for writing to us about {_topic(text)}. {facts if found else nothing}",
            done if follow_up(text) is None else coming,
            f"Kind regards\n{NOTE}",
        ]
    )


def follow_up(text: str) -> str | None:
    return None if urgency(text) == "low" else f"Look into {_topic(text)[:50]} of this customer"


# Fields known by name. Each is used where its value fits the schema; every other field is filled as the schema says.
FIELDS: Mapping[str, Callable[[str], Any]] = {
    rule.__name__: rule
    for rule in (
        *(category, urgency, confidence, reason),  # of a ticket
        *(relevant, summary),  # of a record
        *(subject, body, follow_up),  # of a reply
    )
}


def _matches(text: str) -> dict[str, str]:
    """Category to the first of its words in the text, in the order of the table."""
    found = {name: re.search(words, text, re.I) for name, words in _CATEGORIES.items()}
    return {name: match[0].strip() for name, match in found.items() if match}


def _stated(name: str, text: str, among: tuple[str, ...]) -> str | None:
    match = re.search(rf"\b{name}\W{{1,5}}({'|'.join(among)})\b", text, re.I)
    return match[1].lower() if match else None


def _topic(text: str) -> str:
    return _TOPICS[_stated("category", text, tuple(_TOPICS)) or category(text)]


def _ticket_and_record(text: str) -> tuple[str, str]:
    """The two halves of a message, parted at a heading such as `order A-1001:` or `Record:`, which stays."""
    heading = re.search(r"(?im)^\W*(record|order|invoice|document)\b[^\n]*:[ \t]*$", text)
    return (text[: heading.start()], text[heading.start() :]) if heading else ("", "\n" + text)


def _words(text: str) -> set[str]:
    words = re.findall(r"[a-z]{6,}|[\w-]*\d[\w-]*\d", text.lower())
    return set(words) - {"ticket", "customer", "please", "should"}


def _findings(text: str) -> list[str]:
    """What a prompt lists under `Findings`: lines after a dash, or JSON fields called `summary`."""
    listed = re.split(r"(?m)^Findings\b", text)[-1]
    lines = re.findall(r"(?m)^\s*[-*•] +(.+)$", listed) or [
        json.loads(found) for found in re.findall(r'"summary": *("(?:[^"\\]|\\.)*")', listed)
    ]
    clean = (line.replace(NOTE, "").strip() for line in lines)
    return [line for line in clean if line not in ("", "none")]


def short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " …"
