"""`stafette feedback`: what is said of a finished job becomes labelled data that `stafette eval` reads."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.stack import connected
from local import labelled
from local.model import OfflineModel, error, serve_model
from stafette.aws import feedback, keys, store, table
from stafette.core.messages import job_id
from tests.support import serving

LOST = "I left my card in a taxi, what do I do now"


@pytest.fixture(scope="module")
def model() -> Iterator[OfflineModel]:
    with serve_model() as model:
        yield model


@pytest.fixture(scope="module")
def place(model: OfflineModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with serving(tmp_path_factory.mktemp("stack"), model) as place:
        yield place


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    return place


def run(*arguments: str, gives: int = 0, given: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=given)
    assert result.exit_code == gives, f"{result.output}\n{result.exception!r}"
    return result.output


def done(name: str, tenant: str, text: str = LOST, gives: int = 0, **more: str) -> str:
    """The id of a job that has ended."""
    body = {"request_id": name, "tenant": tenant, "input": {"text": text}, **more}
    run("send", "-", "--wait", given=json.dumps(body), gives=gives)
    return job_id(tenant, name, "")


def test_what_people_said_is_exported_as_lines_that_eval_reads(here: Path) -> None:
    first, second = done("a", "export"), done("b", "export", "zebras dance slowly")
    named = done("c", "export", "what does it cost", flow="ticket")
    assert "went to card_writer and belonged to card_writer" in run("feedback", first, "right")
    run("feedback", second, "wrong", "--should-be", "complaint_writer", "--by", "anna")
    assert "went to writer" in run("feedback", named, "wrong", "--should-be", "none")
    assert "3 lines" in run("feedback", "--export", "said.jsonl", "--tenant", "export")
    lines = labelled.read(here / "said.jsonl", label="label", abstain={"none"})
    assert [(line.text, line.label) for line in lines] == [
        (LOST, "card_writer"),
        ("zebras dance slowly", "complaint_writer"),
        ("what does it cost", None),
    ]
    kept = [json.loads(line) for line in (here / "said.jsonl").read_text().splitlines()]
    assert (kept[1]["decided"], kept[1]["by"], kept[1]["job_id"]) == ("writer", "anna", second)


def test_of_what_is_said_twice_the_latest_counts_and_both_are_kept_for_a_while() -> None:
    job = done("twice", "twice")
    run("feedback", job, "wrong", "--should-be", "writer")
    run("feedback", job[:8], "right")
    with connected():
        assert [said.right for said in feedback.every("twice")] == [True]
        items = list(table.query(keys.feedback_of("twice")))
        assert [item["agent"] for item in items] == ["writer", "card_writer"]
        assert all(item["expires"] == pytest.approx(store.expires(), abs=120) for item in items)


@pytest.mark.parametrize(
    ("arguments", "gives", "told"),
    [
        (("JOB", "wrong", "--should-be", "root"), 2, "there is no agent root"),
        (("JOB", "wrong"), 2, "wrong needs --should-be"),
        (("JOB", "right", "--should-be", "writer"), 2, "nothing else takes it"),
        (("JOB", "wrong", "--should-be", "card_writer"), 2, "did go to card_writer"),
        (("JOB",), 2, "right or wrong"),
        ((), 2, "right or wrong"),
        (("JOB", "right", "--export", "x.jsonl"), 2, "right or wrong"),
        (("0" * 26, "right"), 3, "there is no job"),
        (("--export", "x.jsonl", "--tenant", "nobody"), 3, "nobody said anything"),
    ],
    ids=lambda value: "-".join(value).strip("-") or "nothing" if isinstance(value, tuple) else "",
)
def test_feedback_that_makes_no_sense_is_refused(
    arguments: tuple[str, ...], gives: int, told: str
) -> None:
    job = done("sense", "sense")
    assert told in run("feedback", *(job if a == "JOB" else a for a in arguments), gives=gives)
    with connected():
        assert feedback.every("sense") == []


def test_job_that_is_not_finished_or_never_was_routed_takes_no_feedback(
    model: OfflineModel,
) -> None:
    model.script(error(400, "invalid_request_error"))
    failed = done("failed", "early", gives=1)
    assert "before it was routed" in run("feedback", failed, "right", gives=1)
    body = {"request_id": "waits", "tenant": "early", "input": {"text": LOST}}
    body |= {"budget": {"usd": 0.000001}}
    run("send", "-", "--wait", "--deadline", "2", given=json.dumps(body), gives=4)
    waits = job_id("early", "waits", "")
    assert "feedback is on finished jobs" in run("feedback", waits, "right", gives=1)
    run("cancel", waits)
    assert "before it was routed" in run("feedback", waits, "right", gives=1)


@pytest.mark.parametrize(
    "command",
    [
        ("feedback", "JOB", "right", "--by", "\udcff"),
        ("feedback", "\udcff" * 26, "right"),
        ("cancel", "\udcff" * 26),
        ("trace", "--request-id", "\udcff"),
        ("cost", "--tenant", "\udcff"),
    ],
    ids=lambda command: " ".join(command[:1]),
)
def test_argument_that_is_not_utf_8_is_refused(command: tuple[str, ...]) -> None:
    assert "is not UTF-8" in run(*command, gives=2)


@pytest.mark.parametrize("option", ["--days=inf", "--days=1e308", f"--jobs={10**30}"])
@pytest.mark.parametrize("command", [("cost",), ("agents", "--usage")], ids=" ".join)
def test_looking_back_for_ever_is_refused(command: tuple[str, ...], option: str) -> None:
    assert "Invalid value" in run(*command, option, gives=2)


def test_who_says_something_has_a_name_and_no_endless_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = done("named", "named")
    assert "at most 100" in run("feedback", job, "right", "--by", "x" * 101, gives=2)

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr("cli.feedback.getuser", nobody)
    assert "give --by" in run("feedback", job, "right", gives=2)
    assert "nobody said" in run("feedback", "--export", "n.jsonl", "--tenant", "named", gives=3)
    run("feedback", job, "right", "--by", "anna")
