"""An outside API on loopback, as unkind as one can be: it drops requests and replies, is late, and counts everything.

`POST /actions` carries an action out; `GET /actions/<key>` tells what is known of a key. What it does with a request is
drawn from `chance`. `ledger` holds what was really done, for those who check.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Condition, Thread
from typing import Any
from urllib.parse import quote, unquote

from stafette import clock

# What becomes of a request, and how often in a hundred. The rest is answered at once.
FAULTS = {
    "request lost": 10,
    "reply lost": 12,
    "reply too late": 1,
    "done later, no reply": 10,
    "refused, nothing done": 8,
}
# Real seconds that a client waits for a reply, and that a late one takes.
PATIENCE, LATE = 0.2, 0.3


class OutsideApi(HTTPServer):
    """The server. `honours` says whether a key that it has seen makes it answer as before."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.chance = random.Random(0)
        self.honours = True
        self.latest = 0.0  # until when an action may still be carried out that a client gave up on
        self.ledger: dict[str, list[str]] = {}
        self.met: Counter[str] = Counter()
        self._later: list[tuple[float, str]] = []
        self._handled, self._changed = 0, Condition()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._handled += 1
            self._changed.notify_all()

    def wait_for(self, requests: int) -> None:
        """Waits until so many requests are over, also those that nobody waited for: real time is none of the run's."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._handled >= requests, timeout=30):
                raise RuntimeError("a request did not come to its end")

    def carry_out(self, key: str) -> str:
        """Does it, and gives the id of the action."""
        done = self.ledger.setdefault(key, [])
        if not (self.honours and done):
            done.append(f"{key}/{len(done) + 1}")
        return done[-1]

    def settle(self) -> None:
        """Carries out what was to be done later and is due by the clock of the library."""
        due = [key for moment, key in self._later if moment <= clock.now()]
        self._later = [(moment, key) for moment, key in self._later if moment > clock.now()]
        for key in due:
            self.carry_out(key)

    def later(self, key: str) -> None:
        """Puts an action off, to some moment at which it may still be carried out."""
        now = clock.now()
        moment = now + self.chance.random() * max(0.0, self.latest - now)
        self._later.append((moment, key))

    def draw(self) -> str | None:
        """What goes wrong with a request."""
        number, below = self.chance.randrange(100), 0
        for name, share in FAULTS.items():
            below += share
            if number < below:
                self.met[name] += 1
                return name
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that did not wait for a late reply is no fault of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: OutsideApi

    def do_POST(self) -> None:
        key = json.loads(self.rfile.read(int(self.headers["content-length"])))["key"]
        self.server.settle()
        match self.server.draw():
            case "request lost":
                return
            case "reply lost":
                self.server.carry_out(key)
                return
            case "reply too late":
                answer = self.server.carry_out(key)
                time.sleep(LATE)
                self._send(200, answer)
            case "done later, no reply":
                self.server.later(key)
            case "refused, nothing done":
                self._send(503, None)
            case _:
                self._send(200, self.server.carry_out(key))

    def do_GET(self) -> None:
        self.server.settle()
        done = self.server.ledger.get(unquote(self.path.removeprefix("/actions/")))
        self._send(200 if done else 404, done[-1] if done else None)

    def _send(self, status: int, action: str | None) -> None:
        body = json.dumps({"id": action}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class Client:
    """What an effect calls it with."""

    def __init__(self, server: OutsideApi) -> None:
        self._server, self._asked = server, 0

    def post(self, key: str, what: Any) -> tuple[int, str | None]:
        """Status and id of the action; raises OSError or HTTPException when there is no answer."""
        return self._ask("POST", "/actions", json.dumps({"key": key, "what": what}))

    def get(self, key: str) -> tuple[int, str | None]:
        """The same for a key."""
        return self._ask("GET", f"/actions/{quote(key, safe='')}")

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str | None]:
        port = self._server.server_address[1]
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._asked += 1
        try:
            connection.request(method, path, body)
            if method == "GET" and connection.sock:
                connection.sock.settimeout(5)  # a look-up is to come to an end
            answer = connection.getresponse()
            return answer.status, json.load(answer)["id"]
        finally:
            connection.close()
            self._server.wait_for(self._asked)


@contextmanager
def serve_outside() -> Iterator[OutsideApi]:
    """The server, for as long as the context is open."""
    server = OutsideApi()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
