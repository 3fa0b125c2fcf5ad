"""AWS clients: made once, at first use, and the one place that says how they retry."""

from functools import lru_cache
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_sns.client import SNSClient
    from mypy_boto3_sqs.client import SQSClient

# Short time-outs: a worker that hangs in a call holds its lease for nothing.
_PATIENT = Config(
    retries={"mode": "standard", "total_max_attempts": 4},
    connect_timeout=3,
    read_timeout=10,
)
# A publish is not idempotent: it is repeated by the protocol, which knows what it is doing, or not at all.
_ONCE = Config(
    retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=3, read_timeout=10
)


@lru_cache(maxsize=1)
def dynamodb() -> "DynamoDBClient":
    """Every write is conditional on a token of its writer, so a repeated call is recognised."""
    return boto3.client("dynamodb", config=_PATIENT)


@lru_cache(maxsize=1)
def sqs() -> "SQSClient":
    """A message sent twice is what every receiver is built for."""
    return boto3.client("sqs", config=_PATIENT)


@lru_cache(maxsize=1)
def s3() -> "S3Client":
    """Keys are derived from content, so a repeated put changes nothing."""
    return boto3.client("s3", config=_PATIENT)


@lru_cache(maxsize=1)
def sns() -> "SNSClient":
    """Publishes are guarded as effects and not retried by botocore."""
    return boto3.client("sns", config=_ONCE)


def forget() -> None:
    """Drops the cached clients, for a process whose AWS has changed."""
    for client in (dynamodb, sqs, s3, sns):
        client.cache_clear()
