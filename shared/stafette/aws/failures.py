"""Errors of AWS, translated once, by code and never by text."""

from botocore.exceptions import ClientError

from stafette.core.errors import PermanentError, StafetteError, TransientError

# What goes away by itself. Throttling that outlasts botocore's own retries comes back as a failure of the try.
_TRANSIENT = {
    "InternalError",
    "InternalServerError",
    "InternalFailure",
    "KmsThrottled",
    "OverLimit",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TransactionConflictException",
    "503",
}
_TOO_LARGE = {"InvalidMessageContents", "BatchRequestTooLong", "EntityTooLarge"}


def translated(error: ClientError) -> StafetteError:
    """The error of ours that says what happens to the work; a code we do not know is a bug and is returned as such."""
    code = error.response["Error"]["Code"]
    operation = error.operation_name
    if code in _TRANSIENT:
        return TransientError(f"{operation}: {code}", reason="aws_busy")
    if code in _TOO_LARGE:
        return PermanentError(f"{operation}: {code}", reason="too_large")
    return AwsError(f"{operation}: {code}: {error.response['Error'].get('Message', '')}")


class AwsError(StafetteError):
    """AWS refused a call that we should not have made."""

    reason = "aws_refused"
