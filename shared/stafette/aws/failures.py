"""Errors of AWS, translated once, by code and never by text."""

from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from stafette.core.errors import PermanentError, StafetteError, TransientError

# What a call raises: AWS refused it, or no answer came, and nobody knows whether it took effect.
FAILED_CALLS = (ClientError, HTTPClientError, NoConnectionError)
# Reasons of ours for what a call may be repeated after, if it is safe to repeat.
PASSING = {"aws_busy", "aws_unreachable"}

# What goes away by itself. Throttling that outlasts botocore's own retries comes back as a failure of the try.
_TRANSIENT = {
    "InternalError",
    "InternalServerError",
    "InternalFailure",
    "KMSThrottling",
    "KmsThrottled",
    "OverLimit",
    "ProvisionedThroughputExceededException",
    "ReplicatedWriteConflictException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttled",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TransactionConflictException",
    "503",
}
_TOO_LARGE = {"InvalidMessageContents", "BatchRequestTooLong", "EntityTooLarge"}


def code(error: Exception) -> str:
    """The code that AWS refused a call with; of a call without an answer, nothing."""
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def translated(error: Exception) -> StafetteError:
    """The error of ours that says what happens to the work; a code we do not know is a bug and is returned as such.

    Args:
        error: one of FAILED_CALLS.
    """
    if not isinstance(error, ClientError):
        return TransientError(f"no answer: {type(error).__name__}", reason="aws_unreachable")
    refused, operation = code(error), error.operation_name
    if refused in _TRANSIENT:
        return TransientError(f"{operation}: {refused}", reason="aws_busy")
    if refused in _TOO_LARGE:
        return PermanentError(f"{operation}: {refused}", reason="too_large")
    return AwsError(f"{operation}: {refused}: {error.response['Error'].get('Message', '')}")


class AwsError(StafetteError):
    """AWS refused a call that we should not have made."""

    reason = "aws_refused"
