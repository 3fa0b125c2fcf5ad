"""`python -m local.serve`: one machine kept running, and an endpoint that speaks AWS for the CLI and others."""

import argparse
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from local.calls import Call, Phase
from local.clock import RealClock
from local.functions import model_access
from local.machine import TEMPLATE, Machine
from local.model import serve_model
from local.processes import processes
from local.template import REGION

PLACE = Path(".stafette")
_OWN_MODEL = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL_BASE_URL")
_OF_STACK = re.compile(r"TABLE|BUCKET|TOPIC|RETENTION_DAYS|QUEUE_\w+")
_FILE_NAME = re.compile(r"[\w-]{1,128}")


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Says nothing of each request."""


Seen = Callable[[str, str, str], None]


def application(machine: Machine, seen: Seen | None = None) -> Callable[..., Iterable[bytes]]:
    """A WSGI application over the machine's own backends, one request at a time like every other call.

    `seen` is told method, path and status of each request that was answered.
    """
    aws = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/_stafette/calls":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(counted(machine)).encode()]

        def start(status: str, *more: Any) -> Any:
            if seen:
                seen(environ["REQUEST_METHOD"], environ["PATH_INFO"], status)
            return start_response(status, *more)

        with machine.backend.lock:
            return list(aws(environ, start))

    return answer


def counted(machine: Machine) -> dict[str, Any]:
    """How often functions called AWS, by service and operation, and in all: None where nobody counts, with functions in
    processes of their own."""
    counts: Counter[str] = Counter()
    for (_, service, operation), number in machine.call_counts.items():
        counts[f"{service}.{operation}"] += number
    return {
        "aws": dict(sorted(counts.items())),
        "total": None if machine.processes else counts.total(),
    }


@contextmanager
def served(machine: Machine, port: int = 0, seen: Seen | None = None) -> Iterator[str]:
    """While open, the machine answers at the URL that this gives. Port 0 is any free one."""
    server = make_server(
        "127.0.0.1", port, application(machine, seen), threaded=True, request_handler=_Quiet
    )
    thread = threading.Thread(target=server.serve_forever, name="endpoint")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tell_of_notices(machine: Machine, place: Path) -> None:
    """Prints a line for each notice that a function publishes, and keeps it in `place`/ended."""

    def observer(phase: Phase, call: Call) -> None:
        if (
            phase == "after"
            and (call.service, call.operation) == ("sns", "Publish")
            and not call.error
        ):
            notice = call.parameters["Message"]
            name = job_id(notice) or call.response["MessageId"]
            _write(place / "ended" / f"{name}.json", notice)
            print(f"ended {name}: {notice[:200]}", flush=True)

    machine.on_call(observer)


def job_id(notice: str) -> str | None:
    """The job that a notice is about, if it says so in a form that can name a file."""
    try:
        found = json.loads(notice)["job_id"]
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) and _FILE_NAME.fullmatch(found) else None


def run(
    port: int,
    stopped: threading.Event,
    environment: Mapping[str, str],
    place: Path = PLACE,
    workers: int = 0,
) -> None:
    """Keeps one machine running until `stopped` is set; its functions in so many processes, or with 0 in this one."""
    access = model_access(environment)
    with ExitStack() as stack:
        if not any(environment.get(name) for name in _OWN_MODEL):
            model = stack.enter_context(serve_model())
            access |= {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
            print(f"model     {model.base_url} (offline rules, not a language model)")
        machine = stack.enter_context(
            Machine(
                TEMPLATE,
                clock=RealClock(),
                model_access=access,
                environment={"POWERTOOLS_METRICS_DISABLED": "true"},
                keep=False,
            )
        )
        tell_of_notices(machine, place)
        endpoint = stack.enter_context(served(machine, port))
        shutil.rmtree(place / "ended", ignore_errors=True)
        here = place / "local.json"
        stack.callback(here.unlink, missing_ok=True)
        about = {
            "endpoint": endpoint,
            "region": REGION,
            "outputs": dict(machine.outputs),
            "environment": settings_of(machine),
            "model_base_url": access.get("MODEL_BASE_URL") or access.get("ANTHROPIC_BASE_URL"),
        }
        _write(here, json.dumps(about, indent=2))
        _introduce(machine, endpoint)
        if workers:
            stack.enter_context(processes(machine, endpoint, workers))
        machine.start()
        stack.callback(
            machine.stop
        )  # before the endpoint: what functions call must answer to the end
        stopped.wait()
        print("stopping: what is being worked on is finished first", flush=True)


def settings_of(machine: Machine) -> dict[str, str]:
    """What any of the functions is told of the stack: its table, bucket, topic and queues."""
    told: dict[str, str] = {}
    for function in machine.template.functions.values():
        told |= function.variables
    return {name: value for name, value in told.items() if _OF_STACK.fullmatch(name)}


def _introduce(machine: Machine, endpoint: str) -> None:
    print(f"endpoint  {endpoint}")
    for key, queue in machine.template.queues.items():
        print(f"queue     {key:20} {queue.url}")
    if url := machine.outputs.get("IntakeQueueUrl"):
        body = """'{"request_id": "r1", "input": {"text": "My card was stolen"}}'"""
        print(f"\naws sqs send-message --endpoint-url {endpoint} --region {REGION} \\")
        print(f"  --queue-url {url} --message-body {body}\n", flush=True)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: others read these files while they are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(path)


def _set_at(signals: set[signal.Signals], stopped: threading.Event) -> None:
    signal.sigwait(signals)
    stopped.set()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m local.serve", description=__doc__)
    parser.add_argument("--port", type=int, default=4566, help="0 takes any free port")
    parser.add_argument(
        "--processes",
        type=int,
        default=0,
        metavar="N",
        help="run functions in N processes, which may be killed; their calls are not counted, nor are ends told here",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    stopped = threading.Event()
    # A handler that sets an event can find its lock held, by the waiter or by itself: the signals are waited for.
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    threading.Thread(target=_set_at, args=(ends, stopped), daemon=True).start()
    run(arguments.port, stopped, os.environ, workers=arguments.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
