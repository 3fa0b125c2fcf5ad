"""The models that agents may name: list prices, ids, ways to ask. Nothing else knows a model by its name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType

from stafette.core.errors import PermanentError

# Which table a recorded cost was computed with. Change it with the prices.
VERSION = "2026-11"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens. Writing to the cache (for five minutes) is 1.25 times input."""

    input: Decimal
    output: Decimal
    cache_read: Decimal

    @property
    def cache_write(self) -> Decimal:
        return self.input * Decimal("1.25")


@dataclass(frozen=True, slots=True)
class Model:
    """What has to be known of a model to call it and to bill it.

    Attributes:
        price: of a request.
        bedrock: its id at Bedrock, behind the region or `global` of an inference profile.
        at_once: the `thinking` parameter with which it answers without thinking first; empty when it says nothing of
            it, because it does so anyway or cannot.
        effort: whether it takes the parameter of that name, and thinks by it.
        long: the price of a whole request with a prompt of more than `long_from` tokens, where there is one.
    """

    price: Price
    bedrock: str
    at_once: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    effort: bool = True
    long: Price | None = None
    long_from: int = 0

    def price_for(self, prompt: int) -> Price:
        """The price of a request whose prompt has this many tokens, cached ones included."""
        return self.long if self.long and prompt > self.long_from else self.price


def _price(*dollars: str) -> Price:
    return Price(*map(Decimal, dollars))


_DISABLED = MappingProxyType({"type": "disabled"})
_BETWEEN_TOOLS = MappingProxyType({"type": "between_tools"})

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "claude-haiku-5-5": Model(
            _price("0.10", "0.50", "0.01"),
            "anthropic.claude-haiku-5-5",
            _DISABLED,
            long=_price("0.50", "2.50", "0.05"),
            long_from=100_000,
        ),
        "claude-sonnet-5-5": Model(
            _price("2", "10", "0.10"), "anthropic.claude-sonnet-5-5", _BETWEEN_TOOLS
        ),
        "claude-opus-5-5": Model(_price("4", "20", "0.20"), "anthropic.claude-opus-5-5"),
        "claude-haiku-4-5": Model(
            _price("1", "5", "0.10"), "anthropic.claude-haiku-4-5-20251001-v1:0", effort=False
        ),
        "claude-sonnet-4-6": Model(_price("3", "15", "0.30"), "anthropic.claude-sonnet-4-6"),
    }
)

# The words that Claude Code's files may use for a model.
ALIASES = {
    "haiku": "claude-haiku-5-5",
    "sonnet": "claude-sonnet-5-5",
    "opus": "claude-opus-5-5",
}

# The family and version within a dated id or one of Bedrock, as in `us.anthropic.claude-haiku-4-5-20251001-v1:0`.
_NAME = re.compile(r"claude-[a-z]+-\d+(?:-\d{1,2})?(?!\d)")


def name(spelled: str) -> str:
    """The one name of a model, of its id in the spelling of any provider.

    Raises:
        PermanentError: `model_unpriced`. What cannot be billed is not called.
    """
    found = _NAME.search(spelled)
    if not found or found[0] not in MODELS:
        raise PermanentError(
            f"no price for model {spelled!r} in stafette.agent.models", reason="model_unpriced"
        )
    return found[0]


def model(spelled: str) -> Model:
    """The model of this id; see `name`."""
    return MODELS[name(spelled)]
