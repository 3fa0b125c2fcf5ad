"""What travels on queues. Frozen, small, with ids and a version; unknown fields are kept.

A message says which state of its job it is for; what it carries besides (inputs) is a copy that saves a read and
that can always be rebuilt from stored results.
"""

import json
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from stafette.core.body import has_halves, whole_text
from stafette.core.errors import RefusedError

VERSION = 1

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
JobId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{26}$")]
HandoffId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}(:[a-z0-9_]{1,20})?$")]
FormId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.:-]{0,150}$")]
Tenant = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:@-]{1,64}$")]

Inputs = dict[str, Any]


class Message(BaseModel):
    """What every message has. `kind` tells the shapes apart."""

    model_config = ConfigDict(
        frozen=True, extra="allow", allow_inf_nan=False, strict=True, ser_json_inf_nan="null"
    )

    v: Annotated[int, Field(ge=1)] = VERSION

    def to_body(self) -> str:
        """ASCII JSON: SQS refuses some characters that JSON may hold raw, and ASCII escapes them all.

        Half a character, which the receiver would refuse, is replaced as it is in stored results.
        """
        # It holds JSON values only; pydantic's JSON mode would stumble over half a character.
        value = self.model_dump()
        if has_halves(text := json.dumps(value, ensure_ascii=False)):
            value = json.loads(whole_text(text))
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class Ref(Message):
    """Where a body lies that is too large to travel. `sha256` and `bytes` are of its UTF-8."""

    kind: Literal["ref"] = "ref"
    key: str
    bytes: int
    sha256: str


class Budget(BaseModel):
    """What a job may spend on models before it asks for more; of what is not given, the stack's own cap holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    tokens: Annotated[int, Field(gt=0, le=10**12)] | None = None


class Request(Message):
    """What somebody asks for. The one message that strangers write."""

    kind: Literal["request"] = "request"
    request_id: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    tenant: Tenant = "default"
    flow: Name | None = None
    input: Inputs
    budget: Budget | None = None


class Answer(Message):
    """What a person answers to a form. Strangers write it, as they write requests: `answer` is data.

    `by` is who they say they are.
    """

    kind: Literal["answer"] = "answer"
    job_id: JobId
    form: FormId
    answer: dict[str, Any]
    by: Annotated[str, StringConstraints(max_length=128)] | None = None


class ToJob(Message):
    """A message about a job. `to` is the function it is for, which a dead message could not tell otherwise;
    `generation` the opening of the job that it belongs to."""

    job_id: JobId
    tenant: Tenant
    to: Name
    generation: Annotated[int, Field(ge=0)] = 0


class Handoff(ToJob):
    """Work for a stage: the state of the job it takes, and the wake number it was sent under.

    `inputs` holds the results so far by the name of their model; None asks the receiver to read them.
    """

    kind: Literal["handoff"] = "handoff"
    handoff: HandoffId
    stage: Name
    wake: int = 0
    inputs: Inputs | None = None


class RangeWork(ToJob):
    """One range of a fan-out: hands its parts out."""

    kind: Literal["range"] = "range"
    split: Name
    stage: Name
    join_to: Name
    range_no: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=1)]
    parts: list[Any]


class PartWork(ToJob):
    """One part of a fan-out."""

    kind: Literal["part"] = "part"
    split: Name
    stage: Name
    join_to: Name
    index: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=1)]
    wake: int = 0
    input: Any

    @property
    def handoff(self) -> str:
        """The id of this work within its job."""
        return f"{self.split}:{self.index:05d}"


class Notice(ToJob):
    """Something the world is told about a job. `event`, `n` and the form that it is about, if it is about one, make it
    the same notice when it is sent again."""

    kind: Literal["notice"] = "notice"
    event: Name
    n: int
    form: FormId | None = None
    flow: str
    stage: str
    status: str
    reason: str | None = None
    attributes: dict[str, str] = {}


AnyWork = Handoff | RangeWork | PartWork | Notice
M = TypeVar("M", bound=Message)

_any_work: TypeAdapter[AnyWork] = TypeAdapter(Annotated[AnyWork, Field(discriminator="kind")])


class UnknownVersionError(RefusedError):
    """The message was written by a newer version: it is kept for redrive after the deploy."""

    reason = "unknown_version"


def read_work(value: dict[str, Any]) -> AnyWork:
    """A message between our own functions.

    Raises:
        UnknownVersionError: a newer version wrote it.
        RefusedError: it is none of ours (`unknown_envelope`) or has the wrong shape (`bad_shape`).
    """
    _check_version(value)
    if value.get("kind") not in ("handoff", "range", "part", "notice"):
        raise RefusedError("the body is no message of this system", reason="unknown_envelope")
    return _validated(_any_work, value)


def read_request(value: dict[str, Any]) -> Request:
    """A request from outside.

    Raises:
        UnknownVersionError: it asks for a newer version.
        RefusedError: it has no `input` (`unknown_envelope`) or the wrong shape (`bad_shape`).
    """
    _check_version(value)
    if "input" not in value:
        raise RefusedError('a request is an object with "input"', reason="unknown_envelope")
    return _validated(TypeAdapter(Request), value)


def read_answer(value: dict[str, Any]) -> Answer:
    """An answer from outside.

    Raises:
        UnknownVersionError: it is of a newer version.
        RefusedError: it is no answer (`unknown_envelope`) or has the wrong shape (`bad_shape`).
    """
    _check_version(value)
    if value.get("kind", "answer") != "answer" or "answer" not in value:
        raise RefusedError(
            'an answer is an object with "job_id", "form" and "answer"', reason="unknown_envelope"
        )
    return _validated(TypeAdapter(Answer), value)


def read_ref(value: dict[str, Any]) -> Ref | None:
    """The reference that a body is, or None if the body is the message itself."""
    if value.get("kind") != "ref":
        return None
    _check_version(value)
    return _validated(TypeAdapter(Ref), value)


def faults(error: ValidationError) -> str:
    """Where and what is wrong, without the input itself: it may be anything."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in found[:10]]
    return "; ".join(lines) + (f"; and {len(found) - 10} more" if len(found) > 10 else "")


def job_id(tenant: str, request_id: str | None, message_id: str) -> str:
    """The id of the job that a request asks for: asked twice is one job, for ever. 130 bits, as 26 characters."""
    source = (
        ("request", tenant, request_id)
        if request_id is not None
        else ("message", tenant, message_id)
    )
    return _base32(sha256(json.dumps(source).encode()).digest())


def trace_id(job_id: str) -> str:
    """The trace of a job: 32 hex digits, derived, so that no two workers disagree about it."""
    return sha256(f"trace:{job_id}".encode()).hexdigest()[:32]


def fingerprint(value: Any) -> str:
    """A short hash of a JSON value that does not depend on spacing or the order of keys."""
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()[:32]


def _base32(digest: bytes) -> str:
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    number = int.from_bytes(digest[:17]) >> 6
    return "".join(alphabet[(number >> (5 * i)) & 31] for i in reversed(range(26)))


def _check_version(value: dict[str, Any]) -> None:
    version = value.get("v", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise UnknownVersionError(f"version {version} of this message is newer than {VERSION}")


def _validated(adapter: TypeAdapter[M], value: dict[str, Any]) -> M:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise RefusedError(faults(error), reason="bad_shape") from error
