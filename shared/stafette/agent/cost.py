"""What a model call costs: one table of list prices, and arithmetic in Decimal.

The amounts that travel and add up are whole micro-dollars; `usd` gives the exact figure behind one.
"""

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from stafette.core.errors import PermanentError

# Which table a recorded cost was computed with. Change it with the prices.
VERSION = "2026-11"

_MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens of one model. Writing to the cache is 1.25 times input, reading 0.1 times."""

    input: Decimal
    output: Decimal

    @property
    def cache_write(self) -> Decimal:
        return self.input * Decimal("1.25")

    @property
    def cache_read(self) -> Decimal:
        return self.input * Decimal("0.1")


PRICES = {
    "claude-haiku-4-5": Price(Decimal(1), Decimal(5)),
    "claude-sonnet-4-5": Price(Decimal(3), Decimal(15)),
    "claude-sonnet-4-6": Price(Decimal(3), Decimal(15)),
    "claude-opus-4-5": Price(Decimal(5), Decimal(25)),
    "claude-opus-4-6": Price(Decimal(5), Decimal(25)),
    "claude-opus-4-7": Price(Decimal(5), Decimal(25)),
}

# The family and version within a dated id or one of Bedrock, as in `us.anthropic.claude-haiku-4-5-20251001-v1:0`.
_MODEL = re.compile(r"claude-[a-z]+-\d+(?:-\d{1,2})?(?!\d)")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one call, each counted in exactly one field: the API's `input_tokens` leaves out cached ones."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total_input(self) -> int:
        return self.input + self.cache_read + self.cache_write

    @classmethod
    def from_usage(cls, usage: object) -> "Tokens":
        """From the SDK's `usage`. A field that is null or missing counts as zero."""

        def count(field: str) -> int:
            return int(getattr(usage, field, None) or 0)

        return cls(
            input=count("input_tokens"),
            output=count("output_tokens"),
            cache_read=count("cache_read_input_tokens"),
            cache_write=count("cache_creation_input_tokens"),
        )


def price(model: str) -> Price:
    """The price of a model, by its id at any provider.

    Raises:
        PermanentError: `model_unpriced`. What cannot be billed is not called.
    """
    found = _MODEL.search(model)
    if not found or found[0] not in PRICES:
        raise PermanentError(
            f"no price for model {model!r} in stafette.agent.cost", reason="model_unpriced"
        )
    return PRICES[found[0]]


def usd(tokens: Tokens, price: Price) -> Decimal:
    """The exact cost in US dollars."""
    total = (
        tokens.input * price.input
        + tokens.output * price.output
        + tokens.cache_read * price.cache_read
        + tokens.cache_write * price.cache_write
    )
    return (total / _MILLION).normalize()


def micro(tokens: Tokens, price: Price) -> int:
    """The cost in whole micro-dollars, rounded half up."""
    return int((usd(tokens, price) * _MILLION).to_integral_value(rounding=ROUND_HALF_UP))
