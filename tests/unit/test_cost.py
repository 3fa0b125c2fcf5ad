"""What a call costs: every token billed once, in Decimal, rounded once."""

from decimal import Decimal
from types import SimpleNamespace

import pytest
from anthropic.resources.messages.messages import DEPRECATED_MODELS

from stafette.agent.cost import Tokens, micro, usd
from stafette.agent.models import ALIASES, MODELS, model
from stafette.core.errors import PermanentError

SONNET = MODELS["claude-sonnet-4-6"]
USAGE = SimpleNamespace(
    input_tokens=7, cache_creation_input_tokens=300, cache_read_input_tokens=9842, output_tokens=50
)


def test_req_llm_06_cached_tokens_are_counted_once_and_the_cost_is_exact() -> None:
    tokens = Tokens.from_usage(USAGE)
    assert tokens.total_input == 10_149
    assert (SONNET.price.cache_write, SONNET.price.cache_read) == (Decimal("3.75"), Decimal("0.30"))
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
    haiku = MODELS["claude-haiku-4-5"]
    assert [micro(Tokens(cache_read=n), haiku) for n in (4, 5, 15, 25)] == [0, 1, 2, 3]


def test_large_counts_stay_exact() -> None:
    assert micro(Tokens(input=10**12, cache_read=5), SONNET) == 3 * 10**12 + 2


@pytest.mark.parametrize(
    "name",
    [
        "claude-haiku-4-5",
        "claude-haiku-4-5-20251001",
        "global.anthropic.claude-haiku-4-5-20251001-v1:0",
    ],
)
def test_ids_of_every_provider_have_the_price_of_their_model(name: str) -> None:
    assert model(name) is MODELS["claude-haiku-4-5"]


@pytest.mark.parametrize("name", ["claude-opus-4-20250514", "claude-haiku-4-55", "gpt", ""])
def test_model_without_a_price_is_refused_and_not_guessed(name: str) -> None:
    with pytest.raises(PermanentError) as refused:
        model(name)
    assert refused.value.reason == "model_unpriced"


@pytest.mark.parametrize(
    ("prompt", "expected"), [(100_000, Decimal("0.01")), (100_001, Decimal("0.0500005"))]
)
def test_long_prompt_is_billed_whole_at_the_price_of_long_ones(
    prompt: int, expected: Decimal
) -> None:
    assert usd(Tokens(input=prompt), MODELS["claude-haiku-5-5"]) == expected


def test_cached_tokens_count_for_the_length_of_a_prompt() -> None:
    haiku = MODELS["claude-haiku-5-5"]
    assert usd(Tokens(cache_read=100_000, input=1), haiku) == Decimal("0.0050005")


def test_no_model_that_we_name_is_called_old_by_the_sdk() -> None:
    assert not set(MODELS) & set(DEPRECATED_MODELS)
    assert set(ALIASES.values()) <= set(MODELS)
