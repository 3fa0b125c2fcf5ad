"""Finds the stack that the commands speak to, and sets what the library needs to speak to it.

It is the one that `make local` runs, or with `--stack` one that is deployed.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import typer
from rich.console import Console

from cli import deployed
from cli.deployed import Deployed
from cli.errors import Trouble, explained
from local.show import clean
from stafette.aws import clients
from stafette.core.body import has_halves
from stafette.core.errors import RefusedError

R = TypeVar("R")
FOUND_BY = Path(".stafette") / "local.json"
# Exit codes, the same for every command.
FAILED, USAGE, NOT_FOUND, DEADLINE = 1, 2, 3, 4
_SILENT = {"POWERTOOLS_LOG_LEVEL": "CRITICAL", "POWERTOOLS_METRICS_DISABLED": "true"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What `--stack`, `--region` and `--profile` say. Without a stack it is the local one."""

    stack: str | None = None
    region: str | None = None
    profile: str | None = None


_CHOICE: ContextVar[Choice] = ContextVar("choice", default=Choice())  # noqa: B039 - it is frozen


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack that answers.

    Attributes:
        endpoint: where a local one speaks AWS; None of a deployed one.
        environment: what a function of it sees: the table, the bucket, the topic and the queues.
        deployed: what CloudFormation says of a deployed one.
    """

    endpoint: str | None
    region: str
    environment: Mapping[str, str]
    deployed: Deployed | None = None

    def aws_calls(self) -> int | None:
        """How many AWS calls its functions have made so far; nobody counts them in a deployed one, or in processes of
        their own."""
        if self.endpoint is None:
            return None
        total = _get(f"{self.endpoint}/_stafette/calls")["total"]
        return None if total is None else int(total)


def on_stack(command: Callable[..., R]) -> Callable[..., R]:
    """Gives a command the options that choose a stack; `connected` goes by them."""

    @wraps(command)
    def run(
        *args: Any,
        stack: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        **options: Any,
    ) -> R:
        if stack is None and (region or profile):
            stop("--region and --profile are of a deployed stack: give --stack too", USAGE)
        for name, value in {**options, "stack": stack, "region": region}.items():
            if isinstance(value, str) and has_halves(value):
                stop(f"{name.rstrip('_')}: what is given is not UTF-8", USAGE)
        before = _CHOICE.set(Choice(stack, region, profile))
        try:
            return command(*args, **options)
        finally:
            _CHOICE.reset(before)

    own = inspect.signature(command)
    parameters = [*own.parameters.values(), *_OPTIONS]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _option(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


_OPTIONS = (
    _option(
        "stack",
        Annotated[
            str | None,
            typer.Option(envvar="STAFETTE_STACK", help="A deployed stack, in place of the local."),
        ],
    ),
    _option("region", Annotated[str | None, typer.Option(help="Where it is deployed.")]),
    _option(
        "profile",
        Annotated[str | None, typer.Option(help="Of the AWS configuration: whose account.")],
    ),
)


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
    """While open, the library works on the chosen stack. An error of AWS ends the command with a sentence."""
    before = dict(os.environ)
    try:
        choice = _CHOICE.get()
        stack = _deployed(choice) if choice.stack else _local()
        yield stack
    except Trouble as error:
        stop(explained(error), FAILED)
    except RefusedError as error:
        stop(f"{error.reason}: {error}", FAILED)
    finally:
        os.environ.clear()
        os.environ.update(before)
        _start_afresh()


def _local() -> Stack:
    stack = _found()
    os.environ.pop("AWS_PROFILE", None)
    os.environ.update(_environment(stack))
    _start_afresh()
    return stack


def _deployed(choice: Choice) -> Stack:
    assert choice.stack
    _start_afresh()
    session = boto3.Session(region_name=choice.region, profile_name=choice.profile)
    try:
        found = deployed.find(choice.stack, session)
    except deployed.NotFoundError as error:
        stop(str(error), NOT_FOUND)
    if found.missing:
        stop(
            f"stack {found.name} ({found.status}) has no output {', '.join(found.missing)}: "
            "it is not deployed, or no stack of Stafette",
            FAILED,
        )
    os.environ.update({**found.environment, **_SILENT})
    boto3.setup_default_session(region_name=choice.region, profile_name=choice.profile)
    return Stack(None, found.region, found.environment, found)


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
    stop(
        "no local stack is running here: start one with `make local`, in another terminal; "
        "or name a deployed one with --stack",
        USAGE,
    )


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
        **_SILENT,
    }


def _start_afresh() -> None:
    boto3.DEFAULT_SESSION = None
    clients.forget()


def _get(url: str) -> Any:
    with urlopen(url, timeout=5) as answer:
        return json.load(answer)
