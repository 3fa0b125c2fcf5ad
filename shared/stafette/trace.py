"""Logs and metrics; nothing else makes a logger. A constant sentence, then fields: never a prompt, never an answer."""

from functools import lru_cache
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit


@lru_cache(maxsize=1)
def _logger() -> Logger:
    return Logger()


def info(sentence: str, **fields: Any) -> None:
    """Says what happened."""
    _logger().info(sentence, extra=fields)


def failure(sentence: str, **fields: Any) -> None:
    """Says what went wrong in our own code, with the traceback of the error being handled."""
    _logger().exception(sentence, extra=fields)


def count(metric: str, n: int = 1, **dimensions: str) -> None:
    """Counts something that an alarm or a dashboard watches."""
    emitted = EphemeralMetrics()
    for name, value in dimensions.items():
        emitted.add_dimension(name=name, value=value)
    emitted.add_metric(name=metric, unit=MetricUnit.Count, value=n)
    emitted.flush_metrics()
