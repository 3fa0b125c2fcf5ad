"""What units of AWS cost: whole micro-dollars by service, rounded once."""

from decimal import Decimal

import pytest

from local import aws_prices, bill
from local.bill import Units


@pytest.mark.parametrize(
    ("units", "service", "micro"),
    [
        (Units(writes=1_000_000), "DynamoDB", 625_000),
        (Units(writes=8, reads=8), "DynamoDB", 6),
        (Units(reads=4), "DynamoDB", 0),  # half a micro-dollar, to the even one
        (Units(reads=12), "DynamoDB", 2),
        (Units(sends=1, messages=2, publishes=1), "SQS and SNS", 3),
        (Units(invocations=5), "Lambda", 1),
        (Units(mb_ms=1024 * 1000), "Lambda", 13),  # a GB for a second
        (Units(puts=1), "S3", 5),
    ],
    ids=["writes", "both", "half", "half-up", "queues", "invocations", "memory", "puts"],
)
def test_units_cost_their_list_price(units: Units, service: str, micro: int) -> None:
    cost = units.cost_micro()
    assert cost[service] == micro
    assert set(cost) == set(bill.SERVICES)
    assert sum(cost.values()) == micro


def test_units_add_up() -> None:
    total = Units()
    for _ in range(3):
        total.add(Units(writes=1, reads=2, sends=3, messages=4, publishes=5, mb_ms=6, puts=7))
    assert total == Units(3, 6, 9, 12, 15, 0, 18, 21)


def test_prices_say_of_when_and_where_they_are() -> None:
    assert aws_prices.REGION
    assert aws_prices.VERSION
    named = [value for name, value in vars(aws_prices).items() if isinstance(value, Decimal)]
    assert len(named) == 7
    assert all(value > 0 for value in named)
