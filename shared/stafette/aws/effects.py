"""Actions on the outside world, each done at most once: Powertools idempotency with one rule added.

Powertools repeats an action whose first try outlived its invocation. Here such a record is in doubt: nobody knows
whether the action took place, and the effect says what to do then. One record, one truth: RESERVED, DONE, or in doubt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Generic, Literal, TypeVar, cast

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyInconsistentStateError,
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyPersistenceLayerError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import (
    STATUS_CONSTANTS,
    DataRecord,
)
from aws_lambda_powertools.utilities.idempotency.serialization.pydantic import PydanticSerializer
from aws_lambda_powertools.utilities.typing import LambdaContext
from boto3.dynamodb.conditions import Attr
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from stafette import clock
from stafette.aws import artifacts, keys, table
from stafette.aws.failures import FAILED_CALLS, translated
from stafette.aws.patience import patiently
from stafette.aws.store import VALUE_LIMIT, expires
from stafette.aws.table import ConditionFailedError
from stafette.core.errors import (
    BlockedError,
    PermanentError,
    StafetteError,
    ThrottledError,
    TransientError,
)
from stafette.core.form import Form
from stafette.core.messages import Ref, faults, fingerprint
from stafette.core.run import Run

# Seconds after the end of an invocation in which a request that it made may still be applied.
GRACE = 10.0

# Tells the calls of `once` in one process apart: each reserves under a token of its own.
_CALLS = count(1)

R = TypeVar("R", bound=BaseModel)
InDoubt = Literal["ask", "retry"] | Callable[[str], Any]


class EffectInProgressError(ThrottledError):
    """Another try at this effect may still be under way: it is waited for, and that uses up no failure."""

    reason = "effect_in_progress"


class NotAppliedError(TransientError):
    """The outside answered that it did not carry the action out: it may be tried again."""

    reason = "effect_not_applied"


@dataclass(frozen=True, slots=True)
class Effect(Generic[R]):
    """An action on the outside world.

    Attributes:
        name: unique within a job. Part of the key of its record for ever: it does not follow a renamed function.
        result: what it returns: a small pydantic model (ids, a status), stored with the record.
        act: carries it out; is given the key to hand to the outside, and what to act on.
        in_doubt: what to do when a try was cut off: `retry`, only where the outside honours the key; a function
            of the key that looks up what the outside knows, None if it knows nothing; `ask` a person, who is
            given the facts and may say that it was done, with its result, or that it was not.
    """

    name: str
    result: type[R]
    act: Callable[[str, Any], R]
    in_doubt: InDoubt = "ask"

    def __post_init__(self) -> None:
        if not (isinstance(self.result, type) and issubclass(self.result, BaseModel)):
            raise TypeError(
                f"the result of effect {self.name} is no pydantic model: it could not be stored"
            )


def once(run: Run, effect: Effect[R], about: Any) -> R:
    """Carries out an effect of a job, unless it has been: then its stored result is returned.

    Raises:
        BlockedError: the effect is in doubt, and its form has no answer yet.
        PermanentError: `missing_idempotency_key`.
        TransientError: another try may still be under way, or the outside said that it did nothing.
    """
    for part in (run.job_id, effect.name):
        if not isinstance(part, str) or not part:
            raise PermanentError(
                "an effect needs a job and a name", reason="missing_idempotency_key"
            )
    layer = _Records(run, effect, about)

    def act(key: str) -> R:
        known = layer.known
        return known if known is not None else effect.act(key, about)

    guarded = idempotent_function(
        act,
        data_keyword_argument="key",
        persistence_store=layer,
        config=layer.config,
        output_serializer=PydanticSerializer(effect.result),
    )
    try:
        return _as(effect.result, guarded(key=layer.key))
    except (IdempotencyAlreadyInProgressError, IdempotencyInconsistentStateError) as error:
        raise EffectInProgressError(wait=GRACE) from error
    except IdempotencyPersistenceLayerError as error:
        raise _cause(error) from error


class Word(BaseModel):
    """What a person says of an effect in doubt."""

    model_config = ConfigDict(strict=True, extra="forbid")

    done: bool
    result: Any = None

    @model_validator(mode="after")
    def _with_its_result(self) -> "Word":
        if self.done == (self.result is None):
            raise ValueError("`result` belongs to what was done, and to nothing else")
        return self


def form_of(effect: Effect[Any], token: str, facts: dict[str, Any]) -> Form:
    """The question whether a try took place. The try's token is in its name: its answer is about no other try."""
    result = effect.result.model_json_schema()
    schema = {
        "type": "object",
        "properties": {
            "done": {"type": "boolean", "description": "Did it take place?"},
            "result": result,
        },
        "required": ["done"],
        "additionalProperties": False,
        "if": {"properties": {"done": {"const": True}}},
        "then": {"required": ["result"]},
        "else": {"not": {"required": ["result"]}},
    }
    if "$defs" in result:
        schema["$defs"] = result.pop("$defs")
    return Form(
        name=f"effect.{effect.name}.{fingerprint(token)[:8]}",
        question=f"A try at {effect.name} was cut off, and nobody knows whether it took place. Find out: was it "
        "done, and what was its result? If not, it is done now.",
        schema=schema,
        facts=facts,
    )


class _Ends:
    """What Powertools asks a Lambda context for: how long the invocation still has."""

    def __init__(self, ends: float) -> None:
        self._ends = ends

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._ends - clock.now()) * 1000))


class _Records(BasePersistenceLayer):
    """The record of one effect of one job, in the partition of the job, on the clock of the library.

    Not on Powertools' layer for DynamoDB: each of those leaves a handler on the client, which all calls of a process
    share: in a warm one, every effect would make every later call a little slower.
    """

    def __init__(self, run: Run, effect: Effect[Any], about: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key = f"{run.job_id}/{effect.name}"
        self._run, self._effect, self._about = run, effect, about
        self._token = f"{run.owner}#{next(_CALLS)}"
        self._key = keys.effect(run.job_id, effect.name)
        self.config = IdempotencyConfig(
            lambda_context=cast(LambdaContext, _Ends(run.ends)), raise_on_no_idempotency_key=True
        )
        self.known: Any = None  # what the effect came to, by somebody's word

    def _get_hashed_idempotency_key(self, data: Any) -> str:
        return self._key[1]

    def _get_record(self, idempotency_key: str) -> DataRecord:
        standing = table.get(self._key)
        if standing is None:
            raise IdempotencyItemNotFoundError
        return _record(standing)

    def _get_expiry_timestamp(self) -> int:
        return expires()

    def save_inprogress(self, data: Any, remaining_time_in_millis: int | None = None) -> None:
        """Reserves the effect, or raises that its record exists; one in doubt is settled first."""
        record = DataRecord(
            idempotency_key=self._key[1],
            status=STATUS_CONSTANTS["INPROGRESS"],
            expiry_timestamp=self._get_expiry_timestamp(),
            in_progress_expiry_timestamp=int(self._run.ends * 1000),
        )
        self._put_record(record)

    def _put_record(self, data_record: DataRecord) -> None:
        free = Attr("pk").not_exists() | Attr("status").eq("NOT_APPLIED")
        try:
            self._reserve(data_record, free)
        except ConditionFailedError as standing:
            old = standing.old or {}
            if old.get("status") == STATUS_CONSTANTS["INPROGRESS"]:
                self._take_over(data_record, old)
                return
            raise _exists(old) from standing

    def _reserve(self, record: DataRecord, when: Any) -> None:
        item = {
            "status": record.status,
            "expires": record.expiry_timestamp,
            "in_progress_expiration": record.in_progress_expiry_timestamp,
            "owner": self._token,
            "began": clock.now(),
        }
        table.put(self._key, item, when)

    def _take_over(self, record: DataRecord, old: dict[str, Any]) -> None:
        if old.get("owner") == self._token:
            return  # ours: the answer to the reservation was lost
        wait = old["in_progress_expiration"] / 1000 + GRACE - clock.now()
        if wait > 0:
            raise EffectInProgressError(wait=wait)
        how = self._effect.in_doubt
        if how == "ask":
            self.known = self._asked(old)
        elif callable(how):
            self.known = how(self.key)
        same = Attr("status").eq(old["status"]) & Attr("owner").eq(old["owner"])
        try:
            self._reserve(record, same)
        except ConditionFailedError as lost:
            if (lost.old or {}).get("owner") != self._token:
                raise EffectInProgressError(wait=GRACE) from lost

    def _asked(self, old: dict[str, Any]) -> BaseModel | None:
        """What a person said of a try in doubt; one whose word makes no sense is asked again, and told why."""
        facts = {
            "effect": self._effect.name,
            "key": self.key,
            "about": to_jsonable_python(self._about, fallback=str),
            "began": _when(old["began"]) if "began" in old else None,
            "over": _when(old["in_progress_expiration"] / 1000),
        }
        token = old["owner"]
        while True:
            form = form_of(self._effect, token, facts)
            if form.name not in self._run.answers:
                raise BlockedError(form)
            try:
                word = Word.model_validate(self._run.answers[form.name])
                return self._effect.result.model_validate(word.result) if word.done else None
            except ValidationError as error:
                facts = {**facts, "wrong": faults(error)}
                token += "'"

    def _update_record(self, data_record: DataRecord) -> None:
        """Stores the result; one that outgrew its record lies in S3, for the effect cannot be taken back."""
        text = data_record.response_data or ""
        held: dict[table.Path, Any] = {"data": text}
        if len(text.encode()) > VALUE_LIMIT:
            ref = artifacts.put(text, self._run.job_id)
            held = {"ref": ref.model_dump(include={"key", "bytes", "sha256"})}
        held |= {"status": data_record.status, "expires": data_record.expiry_timestamp}
        try:
            # It took place: only this write keeps it from being in doubt.
            ours = Attr("owner").eq(self._token)
            patiently(self._run.ends, lambda: table.update(self._key, sets=held, when=ours))
        except ConditionFailedError as lost:
            # It was in doubt, and somebody settled that meanwhile: what they found stands.
            raise EffectInProgressError(wait=GRACE) from lost

    def _delete_record(self, data_record: DataRecord) -> None:
        raise NotImplementedError("the record of an effect is never deleted: see delete_record")

    def delete_record(self, data: Any, exception: Exception) -> None:
        """Frees the effect only where it is certain that nothing happened; else the record stays, in doubt."""
        if isinstance(exception, NotAppliedError):
            mine = Attr("owner").eq(self._token)
            try:
                table.update(self._key, sets={"status": "NOT_APPLIED"}, when=mine)
            except ConditionFailedError as lost:
                # It was in doubt meanwhile, and another try has it now.
                raise EffectInProgressError(wait=GRACE) from lost


def _exists(old: dict[str, Any]) -> Exception:
    return IdempotencyItemAlreadyExistsError(old_data_record=_record(old))


def _record(item: dict[str, Any]) -> DataRecord:
    return DataRecord(
        idempotency_key=item["sk"],
        status=item["status"],
        expiry_timestamp=item["expires"],
        response_data=artifacts.get(Ref(**item["ref"])) if "ref" in item else item.get("data", ""),
    )


def _when(moment: Any) -> str:
    return datetime.fromtimestamp(float(moment), UTC).isoformat(timespec="seconds")


def _as(model: type[R], value: Any) -> R:
    return value if isinstance(value, model) else model.model_validate(value)


def _cause(error: IdempotencyPersistenceLayerError) -> Exception:
    """What Powertools wrapped: an error of ours as it is, one of AWS translated."""
    cause = error.__cause__
    if isinstance(cause, StafetteError):
        return cause
    if isinstance(cause, FAILED_CALLS):
        return translated(cause)
    return error
