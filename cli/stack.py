"""Finds the stack that the commands speak to, and sets what the library needs to speak to it."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import typer
from rich.console import Console

from local.show import clean
from stafette.aws import clients

FOUND_BY = Path(".stafette") / "local.json"
# Exit codes, the same for every command.
FAILED, USAGE, NOT_FOUND, DEADLINE = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack.

    Attributes:
        endpoint: where it speaks AWS.
        environment: what a function of it sees: the table, the bucket, the topic and the queues.
    """

    endpoint: str
    region: str
    environment: Mapping[str, str]

    def aws_calls(self) -> int:
        """How many AWS calls its functions have made so far."""
        return int(_get(f"{self.endpoint}/_stafette/calls")["total"])


def console() -> Console:
    """Where results go. Nothing in them is markup: most of it was written by strangers."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
    return Console(width=width, markup=False, emoji=False, highlight=False)


def stop(why: str, code: int) -> NoReturn:
    """Ends the command with a reason on standard error."""
    Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True).print(
        clean(why)
    )
    raise typer.Exit(code)


@contextmanager
def connected() -> Iterator[Stack]:
    """While open, the library works on the stack that `make local` runs."""
    stack = _found()
    before = dict(os.environ)
    os.environ.pop("AWS_PROFILE", None)
    os.environ.update(_environment(stack))
    _start_afresh()
    try:
        yield stack
    finally:
        os.environ.clear()
        os.environ.update(before)
        _start_afresh()


def _found() -> Stack:
    here = Path.cwd()
    for folder in (here, *here.parents):
        try:
            about = json.loads((folder / FOUND_BY).read_text(encoding="utf-8"))
            stack = Stack(about["endpoint"], about["region"], about["environment"])
            stack.aws_calls()
        except (OSError, URLError, ValueError, KeyError):
            continue
        return stack
    stop("no local stack is running here: start one with `make local`, in another terminal", USAGE)


def _environment(stack: Stack) -> dict[str, str]:
    return {
        **stack.environment,
        "AWS_ENDPOINT_URL": stack.endpoint,
        "AWS_DEFAULT_REGION": stack.region,
        "AWS_REGION": stack.region,
        # The caller's own AWS account must not be reached from here, not even by mistake.
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_SESSION_TOKEN": "local",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1,localhost",
        "POWERTOOLS_LOG_LEVEL": "CRITICAL",
        "POWERTOOLS_METRICS_DISABLED": "true",
    }


def _start_afresh() -> None:
    boto3.DEFAULT_SESSION = None
    clients.forget()


def _get(url: str) -> Any:
    with urlopen(url, timeout=5) as answer:
        return json.load(answer)
