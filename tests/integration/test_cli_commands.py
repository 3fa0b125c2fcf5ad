"""The command line against a served machine in a process of its own, with a model that the tests hold."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.stack import connected
from local.model import OfflineModel, error, serve_model
from stafette import settings
from stafette.aws import clients
from stafette.core.messages import job_id
from tests.support import serving

SAMPLE = Path(__file__).resolve().parents[2] / "events" / "ticket.json"


@pytest.fixture(scope="module")
def model() -> Iterator[OfflineModel]:
    with serve_model() as model:
        yield model


@pytest.fixture(scope="module")
def place(model: OfflineModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a local stack runs."""
    with serving(tmp_path_factory.mktemp("stack"), model) as place:
        yield place


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    return place


def run(*arguments: str, gives: int = 0, given: str | None = None) -> str:
    """What the command printed; it must end with this exit code."""
    result = CliRunner().invoke(app, list(arguments), input=given)
    assert result.exit_code == gives, f"{result.output}\n{result.exception!r}"
    return result.output


def event(request_id: str, text: str = "My card was stolen", **more: Any) -> str:
    asked = {"request_id": request_id, "flow": "ticket", "input": {"text": text, **more}}
    return json.dumps(asked)


def refused(body: str) -> str:
    """The id of a message that intake could not take."""
    with connected():
        answer = clients.sqs().send_message(
            QueueUrl=settings.queue("intake"), MessageBody=body, MessageGroupId="t"
        )
    wanted = answer["MessageId"]
    until = time.monotonic() + 60
    while wanted not in run("dead", "list"):
        assert time.monotonic() < until
        time.sleep(0.1)
    return wanted


def failed_job(model: OfflineModel, request_id: str) -> str:
    """The id of a job that the model refused to work on."""
    model.script(error(400, "invalid_request_error"))
    run("send", "-", "--wait", given=event(request_id), gives=1)
    return job_id("default", request_id, "")


def test_table_of_twenty_rows_is_sent_waited_for_and_summed_up(here: Path) -> None:
    rows = [f'"Where is my card, number {n}?",x' for n in range(20)]
    (here / "twenty.csv").write_text("\n".join(["text,category", *rows]) + "\n")
    said = run("send", "twenty.csv", "--flow", "ticket")
    ids = [line for line in said.splitlines() if len(line) == 26 and line.isalnum()]
    assert len(set(ids)) == 20
    assert "20 done" in said
    assert "40, 2.00 per job" in said
    assert "jobs per second" in said
    assert "AWS calls" in said
    assert "at list price" in said


def test_event_is_sent_followed_and_shown() -> None:
    job = run("send", str(SAMPLE)).strip()
    assert job == job_id("acme", "ticket-1001", "")
    watched = run("watch", job[:8])
    for stage in ("asked", "received", "classified", "enriching", "enriched", "drafted", "acted"):
        assert stage in watched
    assert "parts 4/4" in watched
    assert "6 model calls" in watched
    shown = run("show", "--request-id", "ticket-1001", "--tenant", "acme")
    assert "parts of enrich: 4 of 4 counted, 0 failed" in shown
    assert "send_reply" in shown
    assert "record_reader" in shown
    data = json.loads(run("show", job, "--json"))
    assert data["job"]["status"] == "done"
    assert data["totals"]["calls"] == 6
    assert len(data["effects"]) >= 2
    assert data["journal"][0]["stage"] == "asked"


def test_request_that_is_sent_twice_is_one_job() -> None:
    lines = event("twice") + "\n" + event("twice") + "\n"
    said = run("send", "-", given=lines)
    assert said.count(job_id("default", "twice", "")) == 2
    assert "1 done" in said


def test_each_line_of_other_text_is_a_ticket() -> None:
    said = run("send", "-", "--tenant", "lines", given="My card is lost\n\nWhat are the fees?\n")
    assert "2 done" in said
    assert run("jobs").count("lines") == 2


def test_large_request_travels_as_a_reference(here: Path) -> None:
    records = [{"id": f"r{n}", "text": "x" * 90_000} for n in range(3)]
    (here / "large.json").write_text(event("large", records=records))
    assert "1 done" in run("send", "large.json", "--wait")


def test_job_that_fails_is_told_with_its_reason_and_reopened(model: OfflineModel) -> None:
    job = failed_job(model, "fails")
    assert job in run("jobs", "--status", "failed")
    assert "failed" in run("watch", job, gives=1)
    assert "bad_request" in run("show", job) or "request" in run("show", job)
    assert "reopened" in run("dead", "redrive", job)
    assert "done" in run("watch", job)
    assert "only a failed job" in run("dead", "redrive", job, gives=1)


def test_job_under_way_is_cancelled(model: OfflineModel) -> None:
    model.latency = 1.0
    try:
        job = run("send", "-", given=event("cancelled")).strip()
        until = time.monotonic() + 30
        while job not in run("jobs"):
            assert time.monotonic() < until
        assert "is cancelled" in run("cancel", job, "--why", "a test")
    finally:
        model.latency = 0.0
    assert "a test" in run("watch", job, gives=1)


def test_ended_job_is_not_cancelled() -> None:
    run("send", "-", "--wait", given=event("ended"))
    assert "is done" in run("cancel", job_id("default", "ended", ""), gives=1)


def test_message_that_is_no_request_is_listed_shown_whole_and_redriven() -> None:
    wanted = refused('{"text": "no input [red]here[/red] \\u001b[31m"}')
    assert "unknown_envelope" in run("dead", "list")
    shown = run("dead", "show", wanted)
    assert "[red]here[/red]" in shown
    assert "\x1b" not in shown
    assert "sent" in run("dead", "redrive", wanted)
    assert wanted not in run("dead", "list")


def test_request_that_intake_refuses_is_told_with_its_reason() -> None:
    said = run("send", "-", "--wait", "--flow", "nowhere", given=event("nowhere"), gives=1)
    assert "unknown_flow" in said


def test_wait_ends_at_the_deadline(model: OfflineModel) -> None:
    model.latency = 3.0
    try:
        job = run("send", "-", given=event("late")).strip()
        until = time.monotonic() + 30
        while job not in run("jobs"):
            assert time.monotonic() < until
        assert "1 under way" in run(
            "send", "-", "--wait", "--deadline", "0", given=event("late"), gives=4
        )
    finally:
        model.latency = 0.0
    run("watch", job)


def test_what_strangers_wrote_is_neither_markup_nor_control() -> None:
    text = 'Won\'t `pay` $5 "now" [red]ünï🎉[/red] \x1b]0;title\x07'
    run("send", "-", "--wait", given=event("strange", text))
    shown = run("show", "--request-id", "strange")
    assert "[red]ünï🎉[/red]" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


@pytest.mark.parametrize("command", [("watch",), ("show",), ("cancel",), ("dead", "redrive")])
def test_job_that_is_not_there_is_said_so(command: tuple[str, ...]) -> None:
    for job in ("z" * 26, "zzzzzz"):
        run(*command, job, gives=3)


def test_dead_message_that_is_not_there_is_said_so() -> None:
    run("dead", "show", "nothing", gives=3)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.json", "{"),
        ("a.json", '{"text": "no input"}'),
        ("a.jsonl", '{"input": {}}\n[]'),
        ("a.csv", "words\nhello\n"),
        ("a.txt", "\n"),
        ("a.json", '{"input": {"text": NaN}}'),
    ],
)
def test_file_that_holds_no_request_is_refused_before_anything_is_sent(
    here: Path, name: str, body: str
) -> None:
    (here / name).write_text(body)
    assert "a." in run("send", name, gives=2) or "column" in run("send", name, gives=2)


def test_without_a_stack_every_command_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".stafette").mkdir()
    gone = {"endpoint": "http://127.0.0.1:9", "region": "us-east-1", "environment": {}}
    (tmp_path / ".stafette" / "local.json").write_text(json.dumps(gone))
    assert "make local" in run("jobs", gives=2)
    (tmp_path / ".stafette" / "local.json").unlink()
    assert "make local" in run("dead", "list", gives=2)
    assert boto3.DEFAULT_SESSION is None


def test_trace_and_costs_of_jobs_are_told_for_people_and_for_machines(
    model: OfflineModel,
) -> None:
    failed = failed_job(model, "traced-failed")
    run("send", "-", "--wait", given=event("traced"))
    job = job_id("default", "traced", "")
    told = run("trace", job[:10])
    for name in ("route", "classify", "classifier", "draft", "writer", "act", "send_reply"):
        assert name in told
    assert "2 model calls" in told
    assert "from being asked until it ended" in told
    data = json.loads(run("trace", job, "--json"))
    assert data["totals"]["calls"] == 2
    calls = [span for stage in data["spans"] for span in stage["children"]]
    assert calls[0]["attributes"]["gen_ai.agent.name"] == "classifier"
    assert "invalid_request" in run("trace", failed)
    assert "there is no job" in run("trace", "x" * 26, gives=3)

    by_flow = json.loads(run("cost", "--json"))
    assert by_flow["groups"].keys() >= {"ticket"}
    for by in ("agent", "model", "tenant", "day"):
        other = json.loads(run("cost", "--by", by, "--json"))
        assert other["total"]["cost_micro"] == by_flow["total"]["cost_micro"]
    said = run("cost", "--by", "tenant", "--days", "1", "--jobs", "1")
    assert "AWS (estimate)" in said
    assert "It stopped at the 1 newest of them" in said
    assert "Not in the estimate" in said

    usage = run("agents", "--usage")
    assert "classifier" in usage
    assert "median latency" in usage
    shares = [word for word in usage.split() if word.endswith("%")]
    assert 98 <= sum(int(share[:-1]) for share in shares) <= 102
