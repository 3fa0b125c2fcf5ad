"""When a budget has room, waits for the reservations of others, or is used up."""

import pytest

from stafette.agent import cost, models
from stafette.agent.cost import Tokens
from stafette.core.budget import Amount, Exhausted, Held, OthersHold, no_room

NOW = 1000.0


@pytest.mark.parametrize(
    ("booked", "held", "need", "cap", "expected"),
    [
        (Amount(90, 0), [], Amount(10, 5), Amount(100, 0), None),
        (Amount(91, 0), [], Amount(10, 5), Amount(100, 0), Exhausted("micro", 100, 91, 10)),
        (Amount(91, 0), [Held(40, 1, 1050)], Amount(10, 5), Amount(100, 0), OthersHold(1050)),
        # A holder that is dead has spent what it held.
        (Amount(91, 0), [Held(40, 1, 999)], Amount(10, 5), Amount(100, 0), Exhausted("micro", 100, 91, 10)),
        # Waiting for others makes no room when what is spent fills it.
        (Amount(99, 0), [Held(4, 1, 1050)], Amount(10, 5), Amount(100, 0), Exhausted("micro", 100, 95, 10)),
        (Amount(0, 0), [], Amount(101, 5), Amount(100, 0), Exhausted("micro", 100, 0, 101)),
        (Amount(5, 7), [], Amount(1, 4), Amount(0, 10), Exhausted("tokens", 10, 7, 4)),
        (Amount(10**9, 10**9), [], Amount(10**9, 1), Amount(0, 0), None),
    ],
    ids=["fits", "spent", "held", "dead", "spent-under-held", "too-large", "tokens", "no-cap"],
)  # fmt: skip
def test_room(
    booked: Amount, held: list[Held], need: Amount, cap: Amount, expected: object
) -> None:
    assert no_room(booked, held, need, cap, NOW) == expected


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_no_call_can_cost_more_than_what_is_reserved_for_it(name: str) -> None:
    model = models.model(name)
    for sent in (10, 5_000, 99_500, 400_000):
        most = cost.most(sent, 2048, model)
        for tokens in (
            Tokens(input=sent, output=2048),
            Tokens(cache_write=sent, output=2048),
            Tokens(cache_read=sent - 1, input=1, output=2048),
        ):
            assert cost.micro(tokens, model) <= most.micro
            assert tokens.total_input + tokens.output <= most.tokens
