"""What the table says of the model calls of a run: their records, the budgets that paid for them, slots still held."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stafette.agent.answer import REJECTED
from stafette.core.budget import Amount
from stafette.core.limit import parse

Item = Mapping[str, Any]

# What a record of a model call holds from its first write on.
_WHOLE = frozenset(("agent", "model", "why", "question", "began", "outcome", "expires"))
_ANSWERED = ("ok", *REJECTED)
_TOKENS = ("input", "output", "cache_read", "cache_write")


@dataclass(frozen=True)
class Account:
    """A budget: what it has booked, and what the records of its calls come to."""

    booked: Amount
    cost: Amount


@dataclass(frozen=True)
class Bill:
    """What is on record of the model calls of a run.

    Attributes:
        recorded: records of calls that were to be sent to a model.
        settled: those of them that say how the call ended.
        answered: those of them that hold an answer, or what was wrong with one.
        hits: records of questions whose answer was known.
        torn: records that lack what each of them has, by their place.
        accounts: budgets, by their place.
        slots: slots of models that nobody has left.
    """

    recorded: int
    settled: int
    answered: int
    hits: int
    torn: tuple[str, ...]
    accounts: Mapping[str, Account]
    slots: tuple[str, ...]


def bill(items: Iterable[Item], tenants: Mapping[str, str]) -> Bill:
    """Reads the items of a table; `tenants` are those of the jobs."""
    stored = list(items)
    calls = [item for item in stored if item["sk"].startswith("CALL#")]
    made = [call for call in calls if not call.get("cache")]
    budgets = [item for item in stored if item["sk"].split("#")[0] == "BUDGET"]
    return Bill(
        recorded=len(made),
        settled=sum(call["outcome"] != "begun" for call in made),
        answered=sum(call["outcome"] in _ANSWERED for call in made),
        hits=len(calls) - len(made),
        torn=tuple(_place(call) for call in calls if not call.keys() >= _WHOLE),
        accounts={_place(budget): _account(budget, made, tenants) for budget in budgets},
        slots=tuple(
            f"{item['pk']} s{slot}"
            for item in stored
            if item["sk"] == "LIMIT"
            for slot in parse(item).slots
        ),
    )


def _account(budget: Item, calls: list[Item], tenants: Mapping[str, str]) -> Account:
    kind, _, whose = budget["pk"].partition("#")
    jobs = {whose} if kind == "JOB" else {job for job, of in tenants.items() if of == whose}
    paid = [call for call in calls if call["pk"].split("#")[1] in jobs]
    return Account(
        booked=Amount(budget.get("micro", 0), budget.get("tokens", 0)),
        cost=Amount(
            sum(call.get("cost_micro", 0) for call in paid),
            sum(call.get(name, 0) for call in paid for name in _TOKENS),
        ),
    )


def _place(item: Item) -> str:
    return f"{item['pk']} {item['sk']}"
