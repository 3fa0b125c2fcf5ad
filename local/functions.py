"""Loads the handlers of a template and invokes them the way Lambda does: one event, one context, one environment."""

import importlib.util
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, Literal
from uuid import uuid4

from local.clock import Clock
from local.invocation import Invocation, running
from local.template import REGION, Function

Handler = Callable[[Any, "LambdaContext"], Any]
_NUMBERS = count(1)
_PASSED = ("PATH", "LANG", "HOME", "TZ")
MODEL_ACCESS = (
    *("MODEL_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    *("HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE"),
)


class TimedOutError(Exception):
    """The handler returned after its time was over; on Lambda it would have been stopped."""


@dataclass(frozen=True)
class LambdaContext:
    """What a handler is told of its invocation."""

    function_name: str
    memory_limit_in_mb: str
    invoked_function_arn: str
    aws_request_id: str
    log_group_name: str
    log_stream_name: str
    deadline: float = field(repr=False)
    now: Callable[[], float] = field(repr=False)
    function_version: str = "$LATEST"
    identity: None = None
    client_context: None = None

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the function is stopped."""
        return max(0, int((self.deadline - self.now()) * 1000))


@dataclass(frozen=True)
class Outcome:
    """How one invocation ended. `killed` is the end of the process: nothing came back, not even an error."""

    function: str
    request_id: str
    event: Any
    kind: Literal["returned", "failed", "killed"]
    response: Any = None
    error: BaseException | None = None

    @property
    def trace(self) -> str:
        """The traceback of the error, if there is one."""
        return "".join(traceback.format_exception(self.error)) if self.error else ""


class Functions:
    """The functions of one machine.

    Each is loaded at its first invocation, under a module name of its own: all of them are called `app`.
    `model_access` is laid over the environment of functions that ask a model, which are those whose environment in
    the template has a variable `MODEL_...`. `environment` is laid over that of every function.
    """

    def __init__(
        self, clock: Clock, model_access: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self.model_access = dict(model_access)
        self.environment = dict(environment)
        self._clock = clock
        self._handlers: dict[str, Handler] = {}
        self._modules: list[str] = []
        self._loading = threading.Lock()

    def invoke(self, function: Function, event: Any) -> Outcome:
        """Runs the handler and tells how it ended; raises nothing but KeyboardInterrupt."""
        with self.inside(function) as (invocation, context):
            ended = (function.name, invocation.request_id, event)
            try:
                handler = self._handler(function)
                # As on Lambda, what goes in and what comes out is JSON.
                response = json.loads(json.dumps(handler(json.loads(json.dumps(event)), context)))
                invocation.live()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - kept, and told to the mapping
                if isinstance(error, Exception) and not invocation.gone:
                    return Outcome(*ended, "failed", error=error)
                # The process would have died with it: the next one starts cold.
                self._handlers.pop(function.logical_id, None)
                return Outcome(*ended, "killed", error=error)
            if self._clock.now() > invocation.deadline:
                return Outcome(*ended, "failed", error=TimedOutError(f"after {function.timeout} s"))
            return Outcome(*ended, "returned", response)

    @contextmanager
    def inside(self, function: Function) -> Iterator[tuple[Invocation, LambdaContext]]:
        """Lets any code run as this function: its environment, its context, its calls seen."""
        request_id = str(uuid4())
        deadline = self._clock.now() + function.timeout
        invocation = Invocation(function, request_id, deadline, self._environment(function))
        token = running.set(invocation)
        try:
            yield invocation, self._context(invocation)
        finally:
            running.reset(token)

    def unload(self) -> None:
        """Forgets the modules."""
        for name in self._modules:
            sys.modules.pop(name, None)
        self._modules.clear()
        self._handlers.clear()

    def _handler(self, function: Function) -> Handler:
        with self._loading:
            if function.logical_id not in self._handlers:
                self._handlers[function.logical_id] = self._load(function)
            return self._handlers[function.logical_id]

    def _load(self, function: Function) -> Handler:
        module_name, _, attribute = function.handler.rpartition(".")
        unique = f"local_function_{function.logical_id}_{next(_NUMBERS)}"
        file = function.folder / f"{module_name.replace('.', '/')}.py"
        spec = importlib.util.spec_from_file_location(unique, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{function.logical_id}: cannot load {file}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        sys.path.insert(0, str(function.folder))
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[unique]
            raise
        finally:
            sys.path.remove(str(function.folder))
        self._modules.append(unique)
        handler: Handler = getattr(module, attribute)
        return handler

    def _environment(self, function: Function) -> dict[str, str]:
        basics = {
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_SESSION_TOKEN": "local",
            "AWS_EC2_METADATA_DISABLED": "true",
            # A developer's own profile and endpoint are no part of a function.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_LAMBDA_FUNCTION_NAME": function.physical,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory),
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_SAM_LOCAL": "true",  # what sam local sets too; powertools then leaves X-Ray alone
            "LAMBDA_TASK_ROOT": str(function.folder),
            "_HANDLER": function.handler,
        }
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        asks_model = any(name.startswith("MODEL_") for name in function.variables)
        return (
            passed
            | basics
            | dict(function.variables)
            | (self.model_access if asks_model else {})
            | self.environment
        )

    def _context(self, invocation: Invocation) -> LambdaContext:
        function, day = invocation.function, datetime.fromtimestamp(self._clock.now(), UTC)
        return LambdaContext(
            function_name=function.physical,
            memory_limit_in_mb=str(function.memory),
            invoked_function_arn=function.arn,
            aws_request_id=invocation.request_id,
            log_group_name=f"/aws/lambda/{function.physical}",
            log_stream_name=f"{day:%Y/%m/%d}/[$LATEST]{invocation.request_id.replace('-', '')}",
            deadline=invocation.deadline,
            now=self._clock.now,
        )


def model_access(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment says how a model is reached."""
    return {name: environment[name] for name in MODEL_ACCESS if environment.get(name)}
