"""The only reader of the environment. Each function's environment in template.yaml names what it uses."""

import os
from decimal import Decimal


class SettingMissingError(RuntimeError):
    """A setting that this function needs is not in its environment."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"environment variable {name} is not set: add it to the function in template.yaml"
        )


def _required(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise SettingMissingError(name)
    return value


def table() -> str:
    """Name of the one table."""
    return _required("TABLE")


def bucket() -> str:
    """Name of the bucket for artifacts and the outbox."""
    return _required("BUCKET")


def topic() -> str:
    """ARN of the topic that hears of jobs."""
    return _required("TOPIC")


def queue(name: str) -> str:
    """URL of the queue of the function `name`, for example `enrich_record`."""
    return _required(f"QUEUE_{name.upper()}")


def queues() -> dict[str, str]:
    """URLs of all queues that this function knows, by the name of the function they feed."""
    prefix = "QUEUE_"
    known = ((name, url) for name, url in os.environ.items() if name.startswith(prefix))
    return {name.removeprefix(prefix).lower(): url for name, url in known}


def retention() -> int:
    """Seconds that everything but the head outlives the longest life of a job."""
    return int(os.environ.get("RETENTION_DAYS", "30")) * 86_400


def model_provider() -> str:
    """`anthropic` (or any server that speaks the Messages API) or `bedrock`."""
    return os.environ.get("MODEL_PROVIDER", "anthropic")


def model_base_url() -> str | None:
    """Base URL of a Messages API server; None is the provider's own."""
    return os.environ.get("MODEL_BASE_URL") or os.environ.get("ANTHROPIC_BASE_URL") or None


def model_key() -> str | None:
    """An API key given directly, as on a developer's machine; deployed functions read a secret."""
    return os.environ.get("ANTHROPIC_API_KEY") or None


def model_key_secret() -> str:
    """Name of the secret that holds the API key."""
    return _required("MODEL_KEY_SECRET")


def model_longest_wait() -> float:
    """Seconds. A provider that asks to come back later than that fails the work instead of parking it."""
    return float(os.environ.get("MODEL_LONGEST_WAIT", "21600"))


def model_concurrent() -> int:
    """Calls of one model that all workers together make at once."""
    return int(os.environ.get("MODEL_CONCURRENT", "5"))


def model_requests_per_minute() -> int:
    """Requests to one model in a minute, of all workers together; 0 is no limit."""
    return int(os.environ.get("MODEL_REQUESTS_PER_MINUTE", "0"))


def model_tokens_per_minute() -> int:
    """Tokens of one model in a minute, of all workers together; 0 is no limit."""
    return int(os.environ.get("MODEL_TOKENS_PER_MINUTE", "0"))


def job_budget() -> tuple[int, int]:
    """What a job may spend, in micro-dollars and in tokens; 0 is no cap."""
    return _micro("JOB_BUDGET_USD", "10"), int(os.environ.get("JOB_BUDGET_TOKENS", "0"))


def tenant_budget() -> tuple[int, int]:
    """What a tenant may spend in a month, in micro-dollars and in tokens; 0 is no cap."""
    return _micro("TENANT_BUDGET_USD", "0"), int(os.environ.get("TENANT_BUDGET_TOKENS", "0"))


def _micro(name: str, default: str) -> int:
    return int(Decimal(os.environ.get(name, default)) * 1_000_000)


def bedrock_profile() -> str:
    """Which inference profiles Bedrock calls go through: `global`, or a region's such as `us` or `eu`."""
    return os.environ.get("BEDROCK_PROFILE", "global")
