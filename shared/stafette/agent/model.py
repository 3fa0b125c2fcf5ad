"""The one place that knows a provider: its client, its limits on time, and what its errors mean for the work.

It sends one request and never a second: trying again is the queue's business (`max_retries=0`).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

import anthropic
import httpx2
from anthropic.types import Message, MessageParam, OutputConfigParam

from stafette import clock, settings
from stafette.agent.definition import Agent
from stafette.core.errors import PermanentError, StafetteError, ThrottledError, TransientError

# Seconds. A call never outlives its invocation: what is left, less the time to write down how it ended.
LONGEST = 60.0
MARGIN = 5.0
SHORTEST = 2.0

# Seconds to stay away when nobody said for how long; up to twice that, so that a fan-out does not come back at once.
BACK_OFF = 10.0

# A header of the offline model: its answers are fixed rules, and whatever shows them has to say so.
OFFLINE = "x-stafette-offline"

# Our models at Bedrock, where they are called by inference profiles.
_BEDROCK = {
    "claude-haiku-4-5": "anthropic.claude-haiku-4-5-20251001-v1:0",
    "claude-sonnet-4-5": "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "claude-sonnet-4-6": "anthropic.claude-sonnet-4-6",
    "claude-opus-4-5": "anthropic.claude-opus-4-5-20251101-v1:0",
    "claude-opus-4-6": "anthropic.claude-opus-4-6-v1",
}

# What an error means, by its type in the body. That comes first: in mid-stream the status has been sent, and is 200.
_BY_TYPE: Mapping[str, tuple[type[StafetteError], str]] = {
    "rate_limit_error": (ThrottledError, "rate_limited"),
    "overloaded_error": (ThrottledError, "overloaded"),
    "timeout_error": (TransientError, "model_timeout"),
    "api_error": (TransientError, "model_error"),
    "conflict_error": (TransientError, "model_error"),
    "invalid_request_error": (PermanentError, "invalid_request"),
    "request_too_large": (PermanentError, "request_too_large"),
    "authentication_error": (PermanentError, "model_auth"),
    "permission_error": (PermanentError, "model_auth"),
    "billing_error": (PermanentError, "model_billing"),
    "not_found_error": (PermanentError, "model_not_found"),
}

# Then by status, for bodies without a type: other servers, proxies, Bedrock (424 is its model's own failure).
_BY_STATUS: Mapping[int, tuple[type[StafetteError], str]] = {
    400: (PermanentError, "invalid_request"),
    401: (PermanentError, "model_auth"),
    402: (PermanentError, "model_billing"),
    403: (PermanentError, "model_auth"),
    404: (PermanentError, "model_not_found"),
    408: (TransientError, "model_timeout"),
    409: (TransientError, "model_error"),
    413: (PermanentError, "request_too_large"),
    422: (PermanentError, "invalid_request"),
    424: (TransientError, "model_error"),
    425: (TransientError, "model_error"),
    429: (ThrottledError, "rate_limited"),
    504: (TransientError, "model_timeout"),
    529: (ThrottledError, "overloaded"),
}

# Errors of a 429 that no waiting cures: somebody has to raise a limit.
_SPENT = {"contract_spend_limit_reached", "enforced_spend_limit_reached"}

# Reasons after which nobody knows whether the call is billed: it was sent, and no answer or refusal came back whole.
UNKNOWN_USAGE = {"model_timeout", "model_connection", "model_broken_answer", "model_error"}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, whatever it says. `offline` is true when it comes from fixed rules and not from a model."""

    message: Message
    offline: bool


def seconds_for_call(ends: float) -> float:
    """How long a call may take that is made now, in an invocation that ends then.

    Raises:
        TransientError: `no_time_left`.
    """
    left = min(LONGEST, ends - clock.now() - MARGIN)
    if left < SHORTEST:
        raise TransientError(
            "too little of the invocation is left for a model call", reason="no_time_left"
        )
    return left


def provider() -> str:
    """Where calls go: `anthropic`, `bedrock`, or `compatible` for another server that speaks the Messages API."""
    name = settings.model_provider()
    return "compatible" if name == "anthropic" and settings.model_base_url() else name


def send(
    agent: Agent,
    messages: list[MessageParam],
    *,
    seconds: float,
    output: OutputConfigParam | None = None,
) -> Reply:
    """Makes exactly one request.

    Args:
        agent: who speaks: its prompt, model and limits.
        messages: the conversation so far.
        seconds: the longest that it may take.
        output: the format that the answer must have.

    Raises:
        StafetteError: what the provider's error means for the work; `reason` is never made from its text.
    """
    options: dict[str, Any] = {"output_config": output} if output else {}
    if agent.temperature is not None:  # not a parameter of this SDK any more; older models take it
        options["extra_body"] = {"temperature": agent.temperature}
    with translated():
        raw = client().messages.with_raw_response.create(
            model=_id_at_provider(agent.model),
            max_tokens=agent.max_tokens,
            system=agent.prompt,
            messages=messages,
            timeout=httpx2.Timeout(seconds, connect=min(5.0, seconds)),
            **options,
        )
        message = raw.parse()
    if not isinstance(message, Message) or not isinstance(message.content, list):
        raise TransientError(
            "the provider sent something that is no message", reason="model_broken_answer"
        )
    return Reply(message, offline=OFFLINE in raw.headers)


def client() -> anthropic.Anthropic | anthropic.AnthropicBedrock:
    """The client of the configured provider; made when first needed, then kept with its connections."""
    name = settings.model_provider()
    return _client(name, settings.model_base_url(), "" if name == "bedrock" else _key())


@lru_cache(maxsize=4)
def _client(
    name: str, base_url: str | None, key: str
) -> anthropic.Anthropic | anthropic.AnthropicBedrock:
    # The SDK's own spans could be told by the environment to carry prompts: ours are in stafette.trace.
    if name == "bedrock":
        return anthropic.AnthropicBedrock(max_retries=0, open_telemetry=False)
    return anthropic.Anthropic(api_key=key, base_url=base_url, max_retries=0, open_telemetry=False)


def _key() -> str:
    """The API key. A rotated secret is seen within five minutes: another key is another client."""
    if key := settings.model_key():
        return key
    from aws_lambda_powertools.utilities import parameters

    try:
        return str(parameters.get_secret(settings.model_key_secret(), max_age=300))
    except parameters.GetParameterError as exc:
        raise TransientError(
            "the secret that holds the API key cannot be read", reason="model_key"
        ) from exc


def _id_at_provider(model: str) -> str:
    if settings.model_provider() != "bedrock":
        return model
    if model not in _BEDROCK:
        raise PermanentError(f"no Bedrock id is known for {model}", reason="model_not_found")
    return f"{settings.bedrock_profile()}.{_BEDROCK[model]}"


@contextmanager
def translated() -> Iterator[None]:
    """Turns whatever the SDK raises within, also in the middle of a stream, into errors of ours."""
    try:
        yield
    except anthropic.APIStatusError as exc:
        raise _from_status(exc) from exc
    except (anthropic.APITimeoutError, httpx2.TimeoutException) as exc:
        raise TransientError("the model did not answer in time", reason="model_timeout") from exc
    except (anthropic.APIConnectionError, httpx2.TransportError) as exc:
        raise TransientError(
            "the connection to the model failed", reason="model_connection"
        ) from exc
    except anthropic.CredentialsError as exc:
        raise PermanentError("no credentials for the model", reason="model_auth") from exc
    except (anthropic.AnthropicError, ValueError) as exc:
        # A response that is not what its headers say: bad JSON, bad encoding, a shape the SDK refuses.
        raise TransientError(
            "the model's answer cannot be read", reason="model_broken_answer"
        ) from exc


def _from_status(exc: anthropic.APIStatusError) -> StafetteError:
    status = exc.status_code
    named = _BY_TYPE.get(exc.type) if isinstance(exc.type, str) else None
    kind, reason = named or _BY_STATUS.get(status) or _by_hundred(status)
    detail = f"the provider answered {status} {exc.type or 'without an error type'}"
    if exc.request_id:
        detail += f" (request {exc.request_id})"
    if kind is not ThrottledError:
        return kind(detail, reason=reason)
    if exc.error_code in _SPENT:
        return PermanentError(detail, reason="model_billing")
    wait = retry_after(exc.response.headers, clock.now())
    if wait is None:
        wait = BACK_OFF * (1 + clock.chance())
    if wait > settings.model_longest_wait():
        return PermanentError(f"{detail}, to come back in {wait:.0f} s", reason=reason)
    return ThrottledError(detail, wait=wait, reason=reason)


def _by_hundred(status: int) -> tuple[type[StafetteError], str]:
    """The rest. A 2xx here is an error in a stream of a type not known yet."""
    if 400 <= status < 500:
        return PermanentError, "invalid_request"
    return TransientError, "model_error"


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that the provider asks to wait; None when it does not say, or says nothing that makes sense."""
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after", "")
    wait = _number(milliseconds) / 1000 if milliseconds is not None else math.nan
    if not _sensible(wait):
        wait = _number(value)
    if math.isnan(wait):
        wait = _date(value) - now
    return wait if _sensible(wait) else None


def _sensible(wait: float) -> bool:
    return math.isfinite(wait) and wait >= 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _date(text: str) -> float:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return math.nan
