"""What a model call costs, in Decimal. The prices are in `models`.

The amounts that travel and add up are whole micro-dollars; `usd` gives the exact figure behind one.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

from stafette.agent.models import Model
from stafette.core.budget import Amount

_MILLION = Decimal(1_000_000)
# Tokens that the service adds to a request of its own accord, at most: what tells the model of the answer's format.
_ADDED = 1000


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


def usd(tokens: Tokens, model: Model) -> Decimal:
    """The exact cost in US dollars."""
    price = model.price_for(tokens.total_input)
    total = (
        tokens.input * price.input
        + tokens.output * price.output
        + tokens.cache_read * price.cache_read
        + tokens.cache_write * price.cache_write
    )
    return (total / _MILLION).normalize()


def micro(tokens: Tokens, model: Model) -> int:
    """The cost in whole micro-dollars, rounded half up."""
    return int((usd(tokens, model) * _MILLION).to_integral_value(rounding=ROUND_HALF_UP))


def most(bytes_sent: int, max_tokens: int, model: Model) -> Amount:
    """The most that a request can cost and use: a token is a byte at least, and each may be written to the cache.

    Args:
        bytes_sent: of the request's text, in UTF-8, schema included.
        max_tokens: the most that the answer may be.
    """
    sent = bytes_sent + _ADDED
    tokens = Tokens(output=max_tokens, cache_write=sent)
    exact = usd(tokens, model) * _MILLION
    return Amount(int(exact.to_integral_value(rounding=ROUND_CEILING)), sent + max_tokens)
