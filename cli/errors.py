"""What went wrong with AWS, in one sentence that says what to do. By class and by code, never by text."""

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import (
    ConnectionError as NotConnectedError,
)

from stafette.core.errors import StafetteError

Trouble = (BotoCoreError, ClientError, StafetteError)

_SIGN_IN = "sign in again, for example with `aws sso login`"
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_UNKNOWN = {
    *("AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException"),
    *("InvalidToken", "SignatureDoesNotMatch", "UnrecognizedClientException", "OptInRequired"),
}
_REFUSED = {
    *("AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"),
    *("KMSAccessDeniedException", "403"),
}


def refused(error: ClientError) -> bool:
    """Whether the caller lacks a permission."""
    return code(error) in _REFUSED


def code(error: ClientError) -> str:
    """The code by which AWS tells its errors apart."""
    return str(error.response.get("Error", {}).get("Code", ""))


def explained(error: BaseException) -> str:
    """One sentence."""
    if isinstance(error, StafetteError) and isinstance(
        error.__cause__, (BotoCoreError, ClientError)
    ):
        error = error.__cause__
    match error:
        case ClientError():
            return _of_code(error)
        case NoCredentialsError():
            return (
                "there are no AWS credentials: sign in, or name a profile of yours with --profile"
            )
        case PartialCredentialsError():
            return f"the AWS credentials are incomplete: {error}"
        case ProfileNotFound():
            return f"{error}: name one that `aws configure list-profiles` shows"
        case NoRegionError():
            return "no AWS region is set: give --region, or set AWS_DEFAULT_REGION"
        case SSOError() | TokenRetrievalError():
            return f"the AWS session is over: {_SIGN_IN} ({error})"
        case NotConnectedError() | HTTPClientError():
            return f"AWS cannot be reached; is the region right, is the network there? ({error})"
    return f"{type(error).__name__}: {error}"


def _of_code(error: ClientError) -> str:
    found, call = code(error), error.operation_name
    if found in _EXPIRED:
        return f"the AWS credentials have expired: {_SIGN_IN}"
    if found in _UNKNOWN:
        return f"AWS does not take these credentials ({call}: {found}): {_SIGN_IN}, or --profile"
    message = error.response.get("Error", {}).get("Message", "")
    if found in _REFUSED:
        return f"these credentials may not call {call}: {message or found}"
    return f"AWS refused {call}: {found}: {message}"
