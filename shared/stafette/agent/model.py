"""The one place that knows a provider: its client, its names for models, how long a call may take.

It sends one request and never a second: trying again is the queue's business (`max_retries=0`).
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock, Timer
from typing import Any

import anthropic
import httpx2
from anthropic.types import Message, MessageParam, OutputConfigParam, TextBlockParam

from stafette import clock, settings
from stafette.agent import models
from stafette.agent.definition import Agent
from stafette.agent.failures import translated
from stafette.core.errors import TransientError

# Seconds. A call never outlives its invocation: what is left, less the time to write down how it ended.
LONGEST = 60.0
MARGIN = 5.0
SHORTEST = 2.0

# Answers of more tokens may take longer than a call may, at the 128,000 tokens an hour that the SDK reckons with when
# it demands a stream of what may take ten minutes. They are streamed: of one that is cut off it is then known whether
# the model was silent or slow. All others come whole: nobody reads half of one, and a stream has to be taken apart.
STREAMED = int(LONGEST * 128_000 / 3_600)

# A header of the offline model: its answers are fixed rules, and whatever shows them has to say so.
OFFLINE = "x-stafette-offline"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, whatever it says. `offline` is true when it comes from fixed rules and not from a model."""

    message: Message
    offline: bool


@dataclass(slots=True)
class Heard:
    """What is heard of an answer while it is streamed.

    Attributes:
        begun: the provider has begun to answer, and so to bill.
        first_token_ms: from the request to the first piece of the answer.
    """

    begun: bool = False
    first_token_ms: int | None = None


def seconds_for_call(ends: float) -> float:
    """How long a call may take that is made now, in an invocation that ends then.

    Raises:
        TransientError: `no_time_left`.
    """
    left = min(LONGEST, ends - clock.now() - MARGIN)
    if left < SHORTEST:
        raise TransientError(
            "too little of the invocation is left for a model call", reason="no_time_left"
        )
    return left


def provider() -> str:
    """Where calls go: `anthropic`, `bedrock`, or `compatible` for another server that speaks the Messages API."""
    name = settings.model_provider()
    return "compatible" if name == "anthropic" and settings.model_base_url() else name


def send(
    agent: Agent,
    messages: list[MessageParam],
    *,
    seconds: float,
    output: OutputConfigParam | None = None,
    more: Sequence[str] = (),
    remark: str | None = None,
    heard: Heard | None = None,
) -> Reply:
    """Makes exactly one request. An answer that may be long is streamed.

    Args:
        agent: who speaks: its prompt, model and limits.
        messages: the conversation so far.
        seconds: the longest that it may take.
        output: the format that the answer must have.
        more: what follows on the agent's prompt, from what changes least to what changes most.
        remark: what this request adds to the agent's instructions.
        heard: is told of a stream as it comes, also of one that breaks off.

    Raises:
        StafetteError: what the provider's error means for the work; `reason` is never made from its text.
    """
    request: dict[str, Any] = {
        "model": _id_at_provider(agent.model),
        "max_tokens": agent.max_tokens,
        "system": instructions(agent, more, remark),
        "messages": messages,
        "timeout": httpx2.Timeout(seconds, connect=min(5.0, seconds)),
        **_options(agent, output),
    }
    with translated():
        if agent.max_tokens > STREAMED:
            return _streamed(request, seconds, heard or Heard())
        raw = client().messages.with_raw_response.create(**request)
        message = raw.parse()
    if not isinstance(message, Message) or not isinstance(message.content, list):
        raise TransientError(
            "the provider sent something that is no message", reason="model_broken_answer"
        )
    return Reply(message, offline=OFFLINE in raw.headers)


def _streamed(request: dict[str, Any], seconds: float, heard: Heard) -> Reply:
    began = clock.now()
    with (
        client().messages.stream(**request) as stream,
        _until(stream.response, began + seconds - clock.now()) as over,
    ):
        try:
            for event in stream:
                heard.begun = heard.begun or event.type == "message_start"
                if heard.first_token_ms is None and event.type == "content_block_delta":
                    heard.first_token_ms = round((clock.now() - began) * 1000)
        except (httpx2.HTTPError, anthropic.APIConnectionError) as exc:
            if over.is_set():
                raise TransientError(
                    "the model's answer was not whole in time", reason="model_timeout"
                ) from exc
            raise
        if not heard.begun:
            raise TransientError(
                "the provider sent something that is no message", reason="model_broken_answer"
            )
        return Reply(stream.get_final_message(), offline=OFFLINE in stream.response.headers)


@contextmanager
def _until(response: httpx2.Response, seconds: float) -> Iterator[Event]:
    """Hangs up when a stream has not ended after so many seconds: the SDK's own time-out begins anew with each piece.
    The event says that it did."""
    over = Event()

    def hang_up() -> None:
        over.set()
        line = response.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError):  # the other side was faster
            line.shutdown(socket.SHUT_RDWR)

    timer = Timer(max(0.0, seconds), hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()


def instructions(
    agent: Agent, more: Sequence[str] = (), remark: str | None = None
) -> list[TextBlockParam]:
    """The system prompt. The agent's own part is the same in each request and ends where the provider may cache it, and
    so does each part that follows on it (three at most); a prefix that is too short for that is not cached and costs
    nothing more."""
    kept: list[TextBlockParam] = [
        {"type": "text", "text": part, "cache_control": {"type": "ephemeral"}}
        for part in (agent.prompt, *more)
    ]
    return kept if remark is None else [*kept, {"type": "text", "text": remark}]


def client() -> anthropic.Anthropic | anthropic.AnthropicBedrock:
    """The client of the configured provider; made when first needed, then kept with its connections."""
    name = settings.model_provider()
    which = (name, settings.model_base_url(), "" if name == "bedrock" else _key())
    with _making:  # threads that begin at the same time share one
        if which not in _clients:
            _clients[which] = _client(*which)
        return _clients[which]


def forget() -> None:
    """Closes the kept clients, for a process whose provider has changed. Nobody may be using them."""
    with _making:
        while _clients:
            _clients.popitem()[1].close()


_making = Lock()
_clients: dict[tuple[str, str | None, str], anthropic.Anthropic | anthropic.AnthropicBedrock] = {}


def _client(
    name: str, base_url: str | None, key: str
) -> anthropic.Anthropic | anthropic.AnthropicBedrock:
    # The SDK's own spans could be told by the environment to carry prompts: ours are in stafette.trace.
    if name == "bedrock":
        return anthropic.AnthropicBedrock(max_retries=0, open_telemetry=False)
    return anthropic.Anthropic(api_key=key, base_url=base_url, max_retries=0, open_telemetry=False)


def _key() -> str:
    """The API key. A rotated secret is seen within five minutes: another key is another client."""
    if key := settings.model_key():
        return key
    from aws_lambda_powertools.utilities import parameters

    try:
        return str(parameters.get_secret(settings.model_key_secret(), max_age=300))
    except parameters.GetParameterError as exc:
        raise TransientError(
            "the secret that holds the API key cannot be read", reason="model_key"
        ) from exc


def _options(agent: Agent, output: OutputConfigParam | None) -> dict[str, Any]:
    """How the answer has to look, and how much is thought before it. Models reject parameters that they do not know."""
    known = models.model(agent.model)
    config: OutputConfigParam = {**output} if output else {}
    options: dict[str, Any] = {}
    if agent.effort and known.effort:
        config["effort"] = agent.effort
        options["thinking"] = {"type": "adaptive"}
    elif known.at_once:
        options["thinking"] = dict(known.at_once)
    return {**options, "output_config": config} if config else options


def _id_at_provider(model: str) -> str:
    if settings.model_provider() != "bedrock":
        return model
    return f"{settings.bedrock_profile()}.{models.model(model).bedrock}"
