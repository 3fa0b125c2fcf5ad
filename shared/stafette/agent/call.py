"""One request to a model, written down before it and after it."""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from anthropic.types import OutputConfigParam
from pydantic import BaseModel

from stafette import clock, trace
from stafette.agent import cost, failures, guards, model, models
from stafette.agent.answer import Check, RejectedError, judge, output_format, read, text_of
from stafette.agent.definition import Agent
from stafette.aws import cache, calls
from stafette.core.body import whole_text
from stafette.core.budget import Amount
from stafette.core.errors import StafetteError
from stafette.core.run import Run

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What somebody wants to know.

    Attributes:
        agent: who was asked first.
        about: the input.
        answer: the model of the answer.
        check: what else must hold of it.
        digest: tells the questions of one piece of work apart, the same in each of its attempts.
        more: what follows on the prompt of whoever is asked.
    """

    agent: str
    about: str
    answer: type[T]
    check: Check[T] | None
    digest: str
    more: tuple[str, ...] = ()


def once(
    run: Run, agent: Agent, asked: Question[T], *, why: str, fault: str | None
) -> tuple[T, calls.Call]:
    """Makes one request and gives the value that its answer holds, and the record of it.

    Args:
        agent: who is asked now.
        why: `ask`, `retry` or `fallback`.
        fault: what was wrong with the answer before.

    Raises:
        RejectedError: there is an answer, and it may not be used.
        StafetteError: as `ask` says.
    """
    billed = models.model(agent.model)
    output = output_format(asked.answer)
    seconds = model.seconds_for_call(run.ends)
    call = calls.Call(
        n=calls.number(run),
        agent=agent.name,
        model=agent.model,
        provider=model.provider(),
        why=why,
        began=clock.now(),
        prices=models.VERSION,
        question=asked.digest,
    )
    parts = (agent.prompt, *asked.more, asked.about, _remark(fault), output)
    sent = len("".join(map(str, parts)).encode(errors="replace"))
    entered = guards.enter(run, agent.model, call.n, cost.most(sent, agent.max_tokens, billed))
    heard = model.Heard()
    try:
        calls.begin(run, call)
        reply = _sent(agent, asked, output, seconds, fault, heard)
        call = _answered(call, reply, billed, heard)
        try:
            value = judge(read(reply.message, asked.answer), asked.check, agent.confidence)
        except RejectedError as rejected:
            rejected.said = text_of(reply.message)
            raise
    except Exception as exc:
        answered = not call.usage_incomplete
        call = _failed(call, exc, heard)
        _settle(run, call)
        guards.leave(entered, _used(call), None if answered else exc)
        raise
    call = replace(call, outcome="ok", value=value.model_dump_json())
    _settle(run, call)
    guards.leave(entered, _used(call), None)
    return value, call


def recall(run: Run, asked: Question[Any], agent: Agent, found: cache.Cached) -> None:
    """Records that nothing was asked, because the answer was known."""
    call = calls.Call(
        n=calls.number(run),
        agent=agent.name,
        model=agent.model,
        provider=model.provider(),
        why="ask",
        began=clock.now(),
        prices=models.VERSION,
        outcome="ok",
        usage_incomplete=False,
        question=asked.digest,
        value=found.value,
        cache="hit",
        saved_micro=found.cost_micro,
    )
    calls.begin(run, call)


def _used(call: calls.Call) -> Amount | None:
    """What a call that is over has used; None when nobody knows."""
    if call.usage_incomplete:
        return None
    tokens = call.input + call.output + call.cache_read + call.cache_write
    return Amount(call.cost_micro, tokens)


def _sent(
    agent: Agent,
    asked: Question[Any],
    output: OutputConfigParam,
    seconds: float,
    fault: str | None,
    heard: model.Heard,
) -> model.Reply:
    message: Any = {"role": "user", "content": whole_text(asked.about)}
    return model.send(
        agent,
        [message],
        seconds=seconds,
        output=output,
        more=asked.more,
        remark=_remark(fault),
        heard=heard,
    )


def _remark(fault: str | None) -> str | None:
    if fault is None:
        return None
    return (
        "An earlier answer to this message was not accepted. What was wrong with it: "
        f"{whole_text(fault)}\nRead the message again, and give an answer of which that is not true. "
        "Do not state more certainty than there is."
    )


def _settle(run: Run, call: calls.Call) -> None:
    """Records what a call came to. An answer that was paid for is not thrown away because its record is late:
    that then stays `begun`, which is what is known of it."""
    trace.info(
        "a model was asked",
        job_id=run.job_id,
        handoff=run.handoff,
        attempt=run.attempt,
        latency_ms=call.latency_ms,
        **calls.attributes(call),
    )
    try:
        calls.settle(run, call)
    except StafetteError as error:
        trace.info("a model call is not settled", job_id=run.job_id, reason=error.reason)


def _answered(
    call: calls.Call, reply: model.Reply, billed: models.Model, heard: model.Heard
) -> calls.Call:
    tokens = cost.Tokens.from_usage(reply.message.usage)
    return replace(
        call,
        provider="offline" if reply.offline else call.provider,
        latency_ms=_since(call),
        first_token_ms=heard.first_token_ms,
        input=tokens.input,
        output=tokens.output,
        cache_read=tokens.cache_read,
        cache_write=tokens.cache_write,
        cost_micro=cost.micro(tokens, billed),
        usage_incomplete=False,
    )


def _failed(call: calls.Call, exc: Exception, heard: model.Heard) -> calls.Call:
    """A call that came to nothing. Its usage stays unknown only where the provider may have done the work."""
    reason = exc.reason if isinstance(exc, StafetteError) else "bug"
    unknown = heard.begun or reason in {*failures.UNKNOWN_USAGE, "bug"}
    return replace(
        call,
        outcome=reason,
        fault=str(exc) if isinstance(exc, RejectedError) else None,
        usage_incomplete=call.usage_incomplete and unknown,
        latency_ms=call.latency_ms or _since(call),
        first_token_ms=heard.first_token_ms,
    )


def _since(call: calls.Call) -> int:
    return round((clock.now() - call.began) * 1000)
