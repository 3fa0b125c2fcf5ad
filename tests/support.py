"""What tests of the whole system stand on: the stack on one machine, and what a job came to, read from outside.

`Stack` sends requests and reads records with a client whose calls are nobody's: not counted, not stopped.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message
from boto3.dynamodb.types import TypeSerializer

from local.calls import Call, Phase
from local.machine import Machine
from local.model import OfflineModel, serve_model
from local.model_answers import answer
from local.records import Records, read_item
from stafette.agent.definition import Agent
from stafette.agent.model import Reply, instructions
from stafette.core import messages
from stafette.core.numbers import item_size, to_stored

Json = dict[str, Any]

EVENTS = Path(__file__).resolve().parent.parent / "events"
# The words that make the offline model call a ticket urgent.
URGENT = " It was not me."
INDEXES = {"due": ("due_shard", "due"), "list": ("list_shard", "listed_at")}

_serialize = TypeSerializer().serialize


def ticket(request_id: str | None, records: int | list[Json] | None = 3, **changes: Any) -> Json:
    """A request like events/ticket.json, with so many records, or these, or (None) its own.

    `changes` go into its input.
    """
    body: Json = json.loads((EVENTS / "ticket.json").read_text())
    body["request_id"] = request_id
    if isinstance(records, list):
        body["input"]["records"] = records
    elif records is not None:
        known = body["input"]["records"][:records]
        made = [
            {"kind": "order", "id": f"order-{n}", "text": f"Order {n}."} for n in range(records)
        ]
        body["input"]["records"] = known if len(known) == records else made
    body["input"] |= changes
    return body


@dataclass
class Stack(Records):
    """The whole stack on one machine, with the offline model behind it."""

    model: OfflineModel

    # --- acting ------------------------------------------------------------------------------------------

    def send(self, queue: str, body: str | Json) -> str:
        """Puts a body on a queue. Returns the id of the message."""
        text = body if isinstance(body, str) else json.dumps(body)
        answer = self.machine.client("sqs").send_message(
            QueueUrl=self.machine.queue_url(queue), MessageBody=text, MessageGroupId="acme"
        )
        return str(answer["MessageId"])

    def ask(self, request_id: str, records: int | list[Json] | None = 3, **changes: Any) -> str:
        """Asks for a ticket. Returns the id of its job."""
        self.send("intake", ticket(request_id, records, **changes))
        return job_of(request_id)

    def run(self, request_id: str, records: int | list[Json] | None = 3, **changes: Any) -> str:
        """Asks for a ticket and runs until all is quiet."""
        job_id = self.ask(request_id, records, **changes)
        self.machine.run_until_quiet(limit=20_000)
        return job_id

    def run_until(self, seen: Callable[[], bool], limit: int = 500) -> None:
        """Delivers batches until something is seen."""
        for _ in range(limit):
            if seen():
                return
            assert self.machine.step() is not None, "nothing left to deliver"
        raise AssertionError("not seen")

    def take_away(self, queue: str) -> list[str]:
        """Takes every message that can be received off a queue. Returns the bodies."""
        client, url = self.machine.client("sqs"), self.machine.queue_url(queue)
        bodies: list[str] = []
        while found := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in found:
                bodies.append(message["Body"])
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return bodies

    def edit(self, key: tuple[str, str], **sets: Any) -> None:
        """Changes attributes of a stored item behind everybody's back."""
        names = {f"#{n}": name for n, name in enumerate(sets)}
        values = {f":{n}": _serialize(to_stored(value)) for n, value in enumerate(sets.values())}
        self.machine.client("dynamodb").update_item(
            TableName=self.machine.table,
            Key={"pk": {"S": key[0]}, "sk": {"S": key[1]}},
            UpdateExpression="SET " + ", ".join(f"#{n} = :{n}" for n in range(len(sets))),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
        )

    # --- what calls do and cost --------------------------------------------------------------------------

    @contextmanager
    def dying(self, function: str, number: int, phase: Phase) -> Iterator[None]:
        """Ends the process before or after the so-manieth call of a function, counted from now; once."""
        seen: Counter[Phase] = Counter()

        def observe(at: Phase, call: Call) -> None:
            if call.function == function:
                seen[at] += 1
                if at == phase and seen[at] == number:
                    call.invocation.die()

        with self._observed(observe):
            yield

    @contextmanager
    def dying_at(self, where: Callable[[Call], bool], phase: Phase) -> Iterator[None]:
        """Ends the process before or after the first call that `where` is true of; once."""
        done: list[Call] = []

        def observe(at: Phase, call: Call) -> None:
            if at == phase and not done and where(call):
                done.append(call)
                call.invocation.die()

        with self._observed(observe):
            yield
        assert done, "the call to die at was never made"

    @contextmanager
    def sending_twice(self) -> Iterator[None]:
        """Every message that a function sends is there twice."""

        def observe(at: Phase, call: Call) -> None:
            if at == "after" and call.operation in ("SendMessage", "SendMessageBatch"):
                method = {"SendMessage": "send_message", "SendMessageBatch": "send_message_batch"}
                getattr(self.machine.client("sqs"), method[call.operation])(**call.parameters)

        with self._observed(observe):
            yield

    @contextmanager
    def counting(self) -> Iterator["Ledger"]:
        """What the calls made meanwhile cost."""
        ledger = Ledger(self)
        with self._observed(ledger.observe):
            yield ledger

    @contextmanager
    def _observed(self, observe: Callable[[Phase, Call], None]) -> Iterator[None]:
        remove = self.machine.on_call(observe)
        try:
            yield
        finally:
            remove()

    def took_effect(self, job_id: str, since: int = 0) -> Counter[str]:
        """How often an object of the outbox was put, from the calls that were answered well."""
        puts = (
            call.parameters["Key"]
            for call in self.machine.calls[since:]
            if call.operation == "PutObject" and call.error is None and call.response is not None
        )
        return Counter(key for key in puts if key.startswith(f"outbox/{job_id}/"))


@dataclass(frozen=True)
class Cost:
    """One call: units written and read by the service's rules, messages sent by one request."""

    function: str
    operation: str
    sk: str
    writes: int = 0
    reads: int = 0
    sends: int = 0
    messages: int = 0
    failed: bool = False


@dataclass
class Ledger:
    """Units of every call, from its parameters and from what stood in the table before and after it.

    A write costs a unit per KB of the larger of the two, a failed condition as much; an index costs one more for an
    entry that appears or goes, two for one that changes its key. A consistent read costs a unit per 4 KB.
    """

    stack: Records
    costs: list[Cost] = field(default_factory=list)
    _before: dict[int, Json | None] = field(default_factory=dict)

    def observe(self, phase: Phase, call: Call) -> None:
        if call.service == "dynamodb":
            self._table(phase, call)
        elif call.service == "sqs" and phase == "after":
            entries = len(call.parameters.get("Entries", [None]))
            sent = call.operation.startswith("SendMessage")
            if sent:
                self.costs.append(
                    Cost(call.function, call.operation, "", sends=1, messages=entries)
                )

    def _table(self, phase: Phase, call: Call) -> None:
        given = call.parameters
        if call.operation == "Query":
            if phase == "after":
                size = sum(item_size(read_item(item)) for item in call.response["Items"])
                cost = Cost(call.function, "Query", "", reads=max(1, ceil(size / 4096)))
                self.costs.append(cost)
            return
        key = given.get("Key") or {name: given["Item"][name] for name in ("pk", "sk")}
        pk, sk = key["pk"]["S"], key["sk"]["S"]
        machine = self.stack.machine
        stored = machine.backend.item(machine.table, pk, sk)
        item = None if stored is None else read_item(stored)
        if phase == "before":
            self._before[call.number] = item
            return
        before = self._before.pop(call.number)
        if call.operation == "GetItem":
            size = item_size(item or {})
            cost = Cost(call.function, "GetItem", sk, reads=max(1, ceil(size / 4096)))
        else:
            units = max(1, ceil(max(item_size(before or {}), item_size(item or {})) / 1024))
            units += sum(_index_writes(before, item, keys) for keys in INDEXES.values())
            failed = call.error is not None
            cost = Cost(call.function, call.operation, sk, writes=units, failed=failed)
        self.costs.append(cost)

    def of(self, *functions: str, sk: str = "") -> "Ledger":
        """The calls of some functions; of those on the table, those on sort keys that begin so."""
        kept = [c for c in self.costs if not functions or c.function in functions]
        return Ledger(self.stack, [c for c in kept if c.sk.startswith(sk)])

    def without(self, *prefixes: str) -> "Ledger":
        """All but the calls on some sort keys."""
        return Ledger(self.stack, [c for c in self.costs if not c.sk.startswith(prefixes)])

    @property
    def writes(self) -> int:
        return sum(cost.writes for cost in self.costs)

    @property
    def reads(self) -> int:
        return sum(cost.reads for cost in self.costs)

    @property
    def sends(self) -> int:
        return sum(cost.sends for cost in self.costs)

    @property
    def failed(self) -> int:
        return sum(cost.failed for cost in self.costs)


def _index_writes(before: Json | None, after: Json | None, keys: tuple[str, str]) -> int:
    old, new = (
        tuple(item[k] for k in keys) if item and all(k in item for k in keys) else None
        for item in (before, after)
    )
    if old == new:
        return 0
    return 1 if old is None or new is None else 2


def job_of(request_id: str, tenant: str = "acme") -> str:
    """The id of the job that a request asks for."""
    return messages.job_id(tenant, request_id, "")


def script_agent(patch: pytest.MonkeyPatch, rule: Callable[[Json], Any] | None = None) -> None:
    """Puts the rules of the offline model in the place of the provider, without HTTP, guards and records of calls.

    `rule` is shown each request and may raise.
    """

    def send(agent: Agent, messages: list[Any], **given: Any) -> Reply:
        request = {
            "model": agent.model,
            "max_tokens": agent.max_tokens,
            "system": instructions(agent, given.get("more", ()), given.get("remark")),
            "messages": messages,
            "output_config": given.get("output"),
        }
        if rule is not None:
            rule(request)
        return Reply(Message.model_validate(answer(request)), offline=True)

    patch.setattr("stafette.agent.model.send", send)
    for name in ("begin", "settle"):
        patch.setattr(f"stafette.aws.calls.{name}", lambda run, call: None)
    for name in ("enter", "leave"):
        patch.setattr(f"stafette.agent.guards.{name}", lambda *given: None)


@contextmanager
def running_stack(**options: Any) -> Iterator[Stack]:
    """The stack, for as long as the context is open; `options` are those of the machine."""
    with serve_model() as model:
        access = {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
        with Machine(model_access=access, **options) as machine:
            yield Stack(machine, model)


@contextmanager
def serving(place: Path, model: OfflineModel) -> Iterator[Path]:
    """A local stack in a process of its own, found from the folder `place`, for as long as the context is open."""
    access = {"MODEL_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "offline"}
    with (place / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "local.serve", "--port", "0"],
            cwd=place,
            env={**os.environ, **access},
            stdout=log,
            stderr=log,
        )
    try:
        until = time.monotonic() + 60
        while not (place / ".stafette" / "local.json").exists():
            assert process.poll() is None, (place / "serve.log").read_text()
            assert time.monotonic() < until, "the stack did not come up"
            time.sleep(0.05)
        yield place
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
