"""ask: one question to an agent, one request, one value.

It writes down the call before and after it, and knows nothing of queues, retries or fallbacks.
"""

from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel

from stafette import clock, trace
from stafette.agent import cost, definition, failures, model, models
from stafette.agent.answer import output_format, read
from stafette.aws import calls
from stafette.core.body import whole_text
from stafette.core.errors import StafetteError
from stafette.core.run import Run

T = TypeVar("T", bound=BaseModel)


def ask(run: Run, *, agent: str, about: str, answer: type[T]) -> T:
    """Asks an agent about a text and returns its answer as a value.

    Args:
        run: on whose behalf; the call ends before its invocation does.
        agent: the name of a file in `agents/`.
        about: what the agent is to work on. Data: the instructions are in the agent's file.
        answer: the pydantic model that the answer must fit.

    Raises:
        ThrottledError: the provider asks to come back later; `wait` says when.
        TransientError: time, connection, the provider's own failure, or an answer that does not fit.
        PermanentError: refused, cut off, or a request that can never succeed.
        DefinitionError: there is no such agent.
    """
    asked = definition.load(agent)
    billed = models.model(asked.model)
    output = output_format(answer)
    seconds = model.seconds_for_call(run.ends)

    call = calls.Call(
        n=calls.number(run),
        agent=asked.name,
        model=asked.model,
        provider=model.provider(),
        why="ask",
        began=clock.now(),
        prices=models.VERSION,
    )
    calls.begin(run, call)
    try:
        reply = model.send(
            asked, [{"role": "user", "content": whole_text(about)}], seconds=seconds, output=output
        )
        call = _answered(call, reply, billed)
        value = read(reply.message, answer)
    except Exception as exc:
        reason = exc.reason if isinstance(exc, StafetteError) else "bug"
        _settle(run, _failed(call, reason))
        raise
    _settle(run, replace(call, outcome="ok"))
    return value


def _settle(run: Run, call: calls.Call) -> None:
    """Records what a call came to. An answer that was paid for is not thrown away because its record is late:
    that then stays `begun`, which is what is known of it."""
    try:
        calls.settle(run, call)
    except StafetteError as error:
        trace.info("a model call is not settled", job_id=run.job_id, reason=error.reason)


def _answered(call: calls.Call, reply: model.Reply, billed: models.Model) -> calls.Call:
    tokens = cost.Tokens.from_usage(reply.message.usage)
    return replace(
        call,
        provider="offline" if reply.offline else call.provider,
        latency_ms=_since(call),
        input=tokens.input,
        output=tokens.output,
        cache_read=tokens.cache_read,
        cache_write=tokens.cache_write,
        cost_micro=cost.micro(tokens, billed),
        usage_incomplete=False,
    )


def _failed(call: calls.Call, reason: str) -> calls.Call:
    """A call that came to nothing. Its usage stays unknown only where the provider may have done the work."""
    unknown = call.usage_incomplete and reason in failures.UNKNOWN_USAGE
    return replace(
        call, outcome=reason, usage_incomplete=unknown, latency_ms=call.latency_ms or _since(call)
    )


def _since(call: calls.Call) -> int:
    return round((clock.now() - call.began) * 1000)
