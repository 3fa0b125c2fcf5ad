"""ask: one question to an agent, one value that may be used.

An answer that falls short is asked for once more with what is wrong with it, then from the agents that this one falls
back on, then from a person. It knows nothing of queues: coming back later is the business of whoever runs the work.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from stafette import trace
from stafette.agent import definition, model
from stafette.agent.answer import REJECTED, Check, RejectedError, judge
from stafette.agent.call import Question, once, recall
from stafette.agent.definition import Agent
from stafette.aws import cache, calls
from stafette.core.errors import StafetteError, UnsettledError
from stafette.core.form import Form
from stafette.core.messages import faults
from stafette.core.run import Run

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Hop:
    """One call of the chain: who is asked, and why."""

    agent: Agent
    why: str


def ask(
    run: Run,
    *,
    agent: str,
    about: str,
    answer: type[T],
    check: Check[T] | None = None,
    more: Sequence[str] = (),
    abstains: Callable[[T], bool] | None = None,
) -> T:
    """Asks an agent about a text and returns its answer as a value.

    What an earlier attempt at this work has paid for is not paid for again: an answer that passed is taken from its
    record, and one that fell short is not asked for a second time.

    Args:
        run: on whose behalf; the call ends before its invocation does.
        agent: the name of a file in `agents/`.
        about: what the agent is to work on. Data: the instructions are in the agent's file.
        answer: the pydantic model that the answer must fit.
        check: what else must hold of it: a pure function of the value, None or a sentence of what is wrong.
        more: what follows on the agent's prompt, and on that of those behind it: what changes least comes first, so
            that the provider can cache it.
        abstains: whether an agent's answer, one that may be used, leaves the question to a person.

    Raises:
        UnsettledError: no agent gave an answer that may be used, or it abstains, and a person has not answered yet.
        BlockedError: a budget is used up.
        ThrottledError: come back later; `wait` says when.
        TransientError: time, connection, or the provider's own failure.
        PermanentError: refused, cut off, or a request that can never succeed.
        DefinitionError: there is no such agent.
    """
    agents = definition.chain(agent)
    asked = Question(
        *(agents[0].name, about, answer, check),
        _digest(run, agents[0].name, about, answer),
        tuple(more),
    )
    form = _form(asked)
    if form.name in run.answers:
        return _given(run, form, asked)
    value = _answered(run, agents, asked)
    if abstains is not None and abstains(value):
        said = value.model_dump_json()
        left = _try(agent, agents[0].model, "the answer leaves it to a person", said)
        raise UnsettledError(_form(asked, [left]))
    return value


def _answered(run: Run, agents: tuple[Agent, ...], asked: Question[T]) -> T:
    """What the agents answer, or have answered."""
    tries: list[dict[str, Any]] = []
    again = _cache_key(run, agents, asked) if agents[0].cache else None
    for earlier in _earlier(run, asked):
        if earlier.get("value") is not None:
            if (kept := _kept(earlier["value"], asked)) is not None:
                return kept
        elif earlier["outcome"] in REJECTED:
            tries.append(_try(earlier["agent"], earlier["model"], earlier.get("fault", "")))
    found = cache.find(again) if again is not None and not tries else None
    if found is not None and (known := _kept(found.value, asked)) is not None:
        recall(run, asked, agents[0], found)
        return known
    for hop in hops(agents)[len(tries) :]:
        fault = tries[-1]["wrong"] if tries else None
        try:
            value, call = once(run, hop.agent, asked, why=hop.why, fault=fault)
            if again is not None:
                _keep(run, again, call, agents[0].cache)
            return value
        except RejectedError as rejected:
            tries.append(_try(hop.agent.name, hop.agent.model, str(rejected), rejected.said))
    raise UnsettledError(_form(asked, tries))


def hops(agents: tuple[Agent, ...]) -> tuple[Hop, ...]:
    """The calls that a question may cost at most, in order."""
    first, *behind = agents
    return (
        Hop(first, "ask"),
        Hop(first, "retry"),
        *(Hop(agent, "fallback") for agent in behind),
    )


# --- what earlier attempts came to -----------------------------------------------------------------------


def _digest(run: Run, agent: str, about: str, answer: type[BaseModel]) -> str:
    """The same question of the same work, in whatever attempt. Asked twice in one attempt, it is two questions."""
    asked = json.dumps([agent, about, answer.__name__])
    seen = _questions(run)
    seen[asked] += 1
    return sha256(json.dumps([asked, seen[asked]]).encode()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def _questions(_run: Run) -> Counter[str]:
    """How often an attempt has asked what. It lives in one process."""
    return Counter()


def _earlier(run: Run, asked: Question[Any]) -> Iterator[dict[str, Any]]:
    if run.attempt > 1:
        yield from (made for made in calls.earlier(run) if made.get("question") == asked.digest)


def _kept(text: str, asked: Question[T]) -> T | None:
    """A value that passed in an earlier attempt; None if today's code would not take it."""
    try:
        return judge(asked.answer.model_validate_json(text), asked.check, None)
    except (ValidationError, RejectedError):
        return None


# --- the cache -------------------------------------------------------------------------------------------


def _cache_key(run: Run, agents: tuple[Agent, ...], asked: Question[Any]) -> str:
    """The same question of the same tenant to the same agents, as their files stand, at the same provider."""
    known = [
        run.tenant,
        model.provider(),
        [agent.version for agent in agents],
        asked.answer.model_json_schema(),
        asked.about,
        asked.more,
    ]
    return sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def _keep(run: Run, key: str, call: calls.Call, seconds: int) -> None:
    """Keeps an answer that passed. That it is not kept, because the table is busy, is no reason to lose it."""
    try:
        cache.keep(key, cache.Cached(call.value or "", call.cost_micro), seconds)
    except StafetteError as error:
        trace.info("an answer is not kept", job_id=run.job_id, reason=error.reason)


# --- a person ----------------------------------------------------------------------------------------------


def _try(agent: str, model: str, wrong: str, said: str | None = None) -> dict[str, Any]:
    return {"agent": agent, "model": model, "wrong": wrong, "answer": said}


def _form(asked: Question[Any], tries: list[dict[str, Any]] | None = None, n: int = 1) -> Form:
    """What a person is asked for. `n` counts the forms for one question: an answer may be wrong too."""
    name = f"{asked.agent}.{asked.digest}"
    question = f"No answer of {asked.agent} could be used. Give the {asked.answer.__name__} for this input yourself."
    schema = asked.answer.model_json_schema()
    # The floor is for agents: of people nobody asks how sure they are.
    wanted = [field for field in schema.get("required", ()) if field != "confidence"]
    return Form(
        name=name if n == 1 else f"{name}.{n}",
        question=question,
        schema=schema | {"required": wanted},
        facts={"input": asked.about, "tries": tries or []},
    )


def _given(run: Run, form: Form, asked: Question[T]) -> T:
    """The value that a person gave.

    Raises:
        BlockedError: it does not fit: they are asked once more, and told what is wrong.
    """
    tries, n = [], 1
    while form.name in run.answers:
        given = run.answers[form.name]
        try:
            sure = {"confidence": 1.0} if "confidence" in asked.answer.model_fields else {}
            return judge(asked.answer.model_validate(sure | given), asked.check, None)
        except ValidationError as error:
            wrong = faults(error)
        except RejectedError as error:
            wrong = str(error)
        n += 1
        tries.append({"agent": "a person", "model": None, "wrong": wrong, "answer": given})
        form = _form(asked, tries, n)
    raise UnsettledError(form)
