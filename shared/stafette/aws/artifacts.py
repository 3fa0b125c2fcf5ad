"""Large values in S3. Keys are derived from content: storing a value twice is storing it once."""

from hashlib import sha256

from stafette import settings
from stafette.aws import clients
from stafette.aws.failures import FAILED_CALLS, code, translated
from stafette.core.errors import RefusedError
from stafette.core.messages import Ref

# Where people put requests that are too large for a message. Nothing else of the bucket may be named from outside.
INBOX = "artifacts/inbox/"


def put(text: str, folder: str) -> Ref:
    """Stores text under artifacts/`folder`/ and returns where it lies."""
    data = text.encode()
    digest = sha256(data).hexdigest()
    key = f"artifacts/{folder}/{digest}"
    try:
        clients.s3().put_object(Bucket=settings.bucket(), Key=key, Body=data)
    except FAILED_CALLS as error:
        raise translated(error) from error
    return Ref(key=key, bytes=len(data), sha256=digest)


def get(ref: Ref, within: str = "artifacts/") -> str:
    """The text that a reference names.

    Raises:
        RefusedError: it lies outside of `within` (`forbidden_ref`), is gone (`artifact_missing`), is not what was
            stored (`artifact_changed`), or is not text (`not_text`).
    """
    if not ref.key.startswith(within) or ".." in ref.key:
        raise RefusedError(
            f"a reference to {ref.key[:100]} is not allowed here", reason="forbidden_ref"
        )
    try:
        data = clients.s3().get_object(Bucket=settings.bucket(), Key=ref.key)["Body"].read()
    except FAILED_CALLS as error:
        # Who may not list a bucket is told so of a key that is not there.
        if code(error) in ("NoSuchKey", "404", "AccessDenied"):
            raise RefusedError(f"{ref.key} is gone", reason="artifact_missing") from error
        raise translated(error) from error
    if sha256(data).hexdigest() != ref.sha256:
        raise RefusedError(f"{ref.key} is not what was stored", reason="artifact_changed")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RefusedError(f"{ref.key} is not UTF-8", reason="not_text") from error
