"""What a provider's errors mean for the work. Translated once, here, by type and status and never by text."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from json import JSONDecodeError

import anthropic
import httpx2

from stafette import clock, settings
from stafette.core.errors import PermanentError, StafetteError, ThrottledError, TransientError

# Seconds to stay away when nobody said for how long; up to twice that, so that a fan-out does not come back at once.
BACK_OFF = 10.0

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


@contextmanager
def translated() -> Iterator[None]:
    """Turns whatever the SDK raises within, also in the middle of a stream, into errors of ours."""
    try:
        yield
    except anthropic.APIStatusError as exc:
        raise _from_status(exc) from exc
    except (anthropic.APITimeoutError, httpx2.TimeoutException) as exc:
        raise TransientError("the model did not answer in time", reason="model_timeout") from exc
    except (anthropic.APIConnectionError, httpx2.HTTPError) as exc:
        raise TransientError(
            "the connection to the model failed", reason="model_connection"
        ) from exc
    except anthropic.CredentialsError as exc:
        raise PermanentError("no credentials for the model", reason="model_auth") from exc
    except (anthropic.AnthropicError, JSONDecodeError) as exc:
        # A response that is not what its headers say, or an event of a stream that is not JSON.
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
