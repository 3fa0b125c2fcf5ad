"""What a call costs: every token billed once, in Decimal, rounded once."""

from decimal import Decimal
from types import SimpleNamespace

import pytest

from stafette.agent.cost import PRICES, Tokens, micro, price, usd
from stafette.core.errors import PermanentError

SONNET = PRICES["claude-sonnet-4-5"]
USAGE = SimpleNamespace(
    input_tokens=7, cache_creation_input_tokens=300, cache_read_input_tokens=9842, output_tokens=50
)


def test_req_llm_06_cached_tokens_are_counted_once_and_the_cost_is_exact() -> None:
    tokens = Tokens.from_usage(USAGE)
    assert tokens.total_input == 10_149
    assert (SONNET.cache_write, SONNET.cache_read) == (Decimal("3.75"), Decimal("0.30"))
    assert usd(tokens, SONNET) == Decimal("0.0048486")
    assert micro(tokens, SONNET) == 4849


@pytest.mark.parametrize(
    "usage",
    [
        SimpleNamespace(input_tokens=7, output_tokens=50),
        SimpleNamespace(
            input_tokens=7,
            output_tokens=50,
            cache_creation_input_tokens=None,
            cache_read_input_tokens=None,
        ),
    ],
)
def test_req_llm_06_null_and_missing_cache_fields_are_zero(usage: object) -> None:
    assert Tokens.from_usage(usage) == Tokens(input=7, output=50)


def test_half_a_micro_dollar_rounds_up() -> None:
    haiku = PRICES["claude-haiku-4-5"]
    assert [micro(Tokens(cache_read=n), haiku) for n in (4, 5, 15, 25)] == [0, 1, 2, 3]


def test_large_counts_stay_exact() -> None:
    assert micro(Tokens(input=10**12, cache_read=5), SONNET) == 3 * 10**12 + 2


@pytest.mark.parametrize(
    "model",
    [
        "claude-haiku-4-5",
        "claude-haiku-4-5-20251001",
        "global.anthropic.claude-haiku-4-5-20251001-v1:0",
    ],
)
def test_ids_of_every_provider_have_the_price_of_their_model(model: str) -> None:
    assert price(model) is PRICES["claude-haiku-4-5"]


@pytest.mark.parametrize("model", ["claude-opus-4-20250514", "claude-haiku-4-55", "gpt", ""])
def test_model_without_a_price_is_refused_and_not_guessed(model: str) -> None:
    with pytest.raises(PermanentError) as refused:
        price(model)
    assert refused.value.reason == "model_unpriced"
