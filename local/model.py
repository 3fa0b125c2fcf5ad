"""The offline model: fixed rules behind the Messages API, for the real SDK, on 127.0.0.1. It is not a language model.

The same request has the same answer, to the byte. Prose it writes ends in `NOTE` and every response carries the
header `x-stafette-offline`, so that nobody takes it for one. Tests push answers and errors that come first.
"""

import argparse
import json
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Literal

from local.model_answers import answer, fault, message
from local.model_rules import NOTE

Json = dict[str, Any]

MOST_REQUESTS_KEPT = 1000


@dataclass(frozen=True)
class Response:
    """What is sent back.

    Attributes:
        body: a message is streamed when the request asks for that; bytes go out as they are.
        delay: seconds before it goes out, besides the server's latency.
        pause: seconds between the first piece of a stream and the rest.
        breaks: the type of an error that breaks off a stream after its first piece, with the status sent long ago.
        ends: how a stream comes to no end: `early`, the connection is lost in the middle; `quietly`, it stops after its
            first piece as if that were all; `silent`, nothing more comes and the connection stays open.
    """

    body: Json | bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    pause: float = 0.0
    breaks: str | None = None
    ends: Literal["early", "quietly", "silent"] | None = None


Step = Response | Callable[[Json], "Response | Json"]


def error(
    status: int, kind: str, headers: Mapping[str, str] | None = None, **details: Any
) -> Response:
    """An error of the API, for a script: `error(429, "rate_limit_error", {"retry-after": "2"})`."""
    fault = {"type": kind, "message": f"{kind} {NOTE}", **details}
    return Response({"type": "error", "error": fault}, status, headers or {})


def thinks(thought: str) -> Json:
    """A block of thinking for the content of a message, signed as the provider's are."""
    return {"type": "thinking", "thinking": thought, "signature": f"offline-{len(thought)}"}


def says(content: str | list[Json], stop_reason: str = "end_turn", **fields: Any) -> Step:
    """A message for a script; `fields` replace those of the message, as in `usage={...}`."""
    return lambda request: {**message(request, content, stop_reason), **fields}


class HangUpError(Exception):
    """Raised by an observer: the connection ends without an answer."""


Observer = Callable[[Literal["before", "after"], Json], None]


class OfflineModel(ThreadingHTTPServer):
    """The server. `requests` holds the bodies of the last requests, `calls` counts all of them."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0, latency: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.latency = latency
        self.calls = 0
        self.requests: deque[Json] = deque(maxlen=MOST_REQUESTS_KEPT)
        self.closing = Event()
        self._steps: deque[Step] = deque()
        self._observers: list[Observer] = []
        self._connections: set[socket.socket] = set()
        self._lock = Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def script(self, *steps: Step) -> None:
        """What the next requests get, in order. After that the rules answer again."""
        with self._lock:
            self._steps.extend(steps)

    def forget(self) -> None:
        """Takes back the steps that no request has come for."""
        with self._lock:
            self._steps.clear()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Shows each request to `observer` before it is looked at and when its answer is made, before that leaves.

        Returns what takes it off again. The observer may raise HangUpError.
        """
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def tell(self, phase: Literal["before", "after"], request: Json) -> None:
        """Tells the observers."""
        for observer in tuple(self._observers):
            observer(phase, request)

    @property
    def unused(self) -> int:
        """Steps that no request has come for."""
        return len(self._steps)

    def respond(self, request: Json) -> Response:
        """Counts a request and answers it."""
        with self._lock:
            self.calls += 1
            self.requests.append(request)
            step: Step = self._steps.popleft() if self._steps else _by_rules
        given = step if isinstance(step, Response) else step(request)
        return given if isinstance(given, Response) else Response(given)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away, as after a time-out, is no fault of ours; anything else is raised in sight."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stops, and hangs up on clients that keep a connection open."""
        self.closing.set()
        self.shutdown()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # gone already
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one write for head and body
    server: OfflineModel

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            request = json.loads(raw)
        except ValueError:
            request = None
        if path not in ("/v1/messages", "/v1/messages/count_tokens"):
            self._send(error(404, "not_found_error"))
        elif not (self.headers.get("x-api-key") or self.headers.get("authorization")):
            self._send(error(401, "authentication_error"))
        elif path.endswith("count_tokens") and isinstance(request, dict):
            self._send(Response({"input_tokens": message(request, "")["usage"]["input_tokens"]}))
        elif why := fault(request):
            self._send(error(400, "invalid_request_error", message=f"{why} {NOTE}"))
        else:
            try:
                self.server.tell("before", request)
                response = self.server.respond(request)
                self.server.closing.wait(self.server.latency + response.delay)
                self.server.tell("after", request)
            except HangUpError:
                self.close_connection = True
                return
            self._send(response, stream=bool(request.get("stream")))

    def do_GET(self) -> None:
        self._send(error(404, "not_found_error"))

    def _send(self, response: Response, stream: bool = False) -> None:
        body, kind, events = response.body, "application/json", list[bytes]()
        if isinstance(body, dict):
            if stream and body.get("type") == "message":
                kind, events = "text/event-stream", list(_events(body, response.breaks))
                body = b"".join(events[:3] if response.ends == "quietly" else events)
            else:
                body = json.dumps(body).encode()
        headers = {
            "content-type": kind,
            "content-length": str(len(body)),
            "request-id": f"req_offline_{sha256(body).hexdigest()[:16]}",
            "x-stafette-offline": "fixed rules; not a language model",
            **response.headers,
        }
        self.send_response(response.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if stream and response.ends in ("early", "silent"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if response.ends == "silent":
                self.server.closing.wait()
            self.close_connection = True
            return
        if stream and response.pause:
            begun = len(b"".join(events[:3]))
            self.wfile.write(body[:begun])
            self.wfile.flush()
            self.server.closing.wait(response.pause)
            body = body[begun:]
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing: requests hold what must not be logged."""


def _by_rules(request: Json) -> Response:
    return Response(answer(request))


# How a block is streamed: what it starts without, the type and field of its pieces, and all of them.
_PIECES: Mapping[str, Callable[[Json], tuple[Json, str, str, str]]] = {
    "text": lambda block: ({"text": ""}, "text_delta", "text", block["text"]),
    "tool_use": lambda block: (
        {"input": {}},
        "input_json_delta",
        "partial_json",
        json.dumps(block["input"]),
    ),
    "thinking": lambda block: (
        {"thinking": "", "signature": ""},
        "thinking_delta",
        "thinking",
        block["thinking"],
    ),
    "redacted_thinking": lambda _: ({}, "", "", ""),
}


def _events(message: Json, breaks: str | None) -> Iterator[bytes]:
    """A message as server-sent events."""
    empty = {**message, "content": [], "stop_reason": None}
    yield _event("message_start", message=empty)
    for index, block in enumerate(message["content"]):
        field, kind, name, whole = _PIECES[block["type"]](block)
        yield _event("content_block_start", index=index, content_block={**block, **field})
        for at in range(0, len(whole), 40):
            piece = {"type": kind, name: whole[at : at + 40]}
            yield _event("content_block_delta", index=index, delta=piece)
            if breaks:
                yield _event("error", error={"type": breaks, "message": NOTE})
                return
        if block["type"] == "thinking":
            signed = {"type": "signature_delta", "signature": block["signature"]}
            yield _event("content_block_delta", index=index, delta=signed)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield _event("message_delta", delta=end, usage=message["usage"])
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


class UnusedStepError(AssertionError):
    """A script went on longer than the requests."""


@contextmanager
def serve_model(latency: float = 0.0, port: int = 0) -> Iterator[OfflineModel]:
    """An offline model for as long as the context is open; port 0 takes a free one.

    Raises:
        UnusedStepError: at the end, when a scripted step was never asked for.
    """
    model = OfflineModel(port, latency)
    thread = Thread(target=model.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.close()
        thread.join()
    if model.unused:
        raise UnusedStepError(f"{model.unused} scripted steps were never asked for")


def main() -> None:
    """`python -m local.model --port N`: serves until interrupted."""
    parser = argparse.ArgumentParser(description=f"Serves the Messages API. {NOTE}")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    given = parser.parse_args()
    with serve_model(given.latency, given.port) as model:
        print(f"{model.base_url} {NOTE}", flush=True)
        try:
            Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
