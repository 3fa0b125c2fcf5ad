"""`stafette eval`: figures of the real chain of calls, what may be compared, and what ends with which exit code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.main import app
from local import evaluate
from local.model import OfflineModel, error, says, serve_model
from stafette.agent import definition

LINES = [
    ("I left my card in a taxi, what do I do now", "card_writer"),
    ("your colleague on the phone was rude and hung up on me", "complaint_writer"),
    ("my transfer has not arrived after three days", "writer"),
    ("the ATM kept my card and did not give it back", "complaint_writer"),  # a wrong label
    ("Zebras dance slowly.", "none"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "MODEL_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfflineModel]:
    """A model that the environment names: the offline one, in the place of somebody's own."""
    with serve_model() as model:
        monkeypatch.setenv("MODEL_BASE_URL", model.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        yield model
        model.forget()


def written(lines: list[tuple[str, str]] = LINES, name: str = "lines.jsonl") -> str:
    told = (json.dumps({"text": text, "label": label}) for text, label in lines)
    Path(name).write_text("\n".join(told) + "\n")
    return name


def run(*arguments: str, gives: int = 0) -> str:
    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == gives, f"{result.output}\n{result.exception!r}"
    return result.output


def row(said: str, begins: str) -> str:
    [found] = [line for line in said.splitlines() if line.startswith(begins)]
    return found[len(begins) :].strip()


def chooses(agent: str, confidence: float) -> Any:
    return says(json.dumps({"agent": agent, "confidence": confidence}))


def test_router_is_measured_and_the_offline_model_says_what_it_is(here: Path) -> None:
    said = run("router", written())
    assert "not a language model" in said
    assert row(said, "accuracy, right abstentions included") == "80.0%"
    assert row(said, "abstained, of lines to abstain from") == "100.0%"
    assert ["card_writer", "1", "50.0%", "100.0%"] in [line.split() for line in said.splitlines()]
    [wrong] = (here / ".stafette" / "eval" / "router-failures.jsonl").read_text().splitlines()
    assert json.loads(wrong) | {"confidence": None} == {
        "line": 4,
        "label": "complaint_writer",
        "said": "card_writer",
        "confidence": None,
        "failed": None,
        "text": LINES[3][0],
    }


def test_calls_cost_and_the_whole_chain_are_counted(model: OfflineModel) -> None:
    model.script(chooses("writer", 0.1), chooses("writer", 0.1), chooses("card_writer", 0.9))
    said = run("router", written(LINES[:1]))
    assert row(said, "model calls a decision") == "3.00"
    assert row(said, "accuracy, right abstentions included") == "100.0%"
    assert float(row(said, "cost a decision").lstrip("$")) > 0
    assert "not a language model" not in said.split("accuracy")[0]


def test_form_for_a_person_is_an_abstention(model: OfflineModel) -> None:
    model.script(*[chooses("card_writer", 0.1)] * 3)
    said = run("router", written(LINES[:1]))
    assert row(said, "abstained, of lines with a label") == "100.0%"
    assert row(said, "failed: no decision") == "0"


def test_model_that_is_busy_is_waited_for_and_what_it_refuses_is_a_failure(
    model: OfflineModel,
) -> None:
    model.script(error(429, "rate_limit_error", {"retry-after": "0"}), error(400, "api"))
    said = run("router", written(LINES[:2]), "--at-once", "1")
    assert row(said, "failed: no decision") == "1"
    assert "failed: invalid_request" in said


def test_run_in_which_nothing_comes_of_anything_is_stopped(model: OfflineModel) -> None:
    many = [(f"my card {n}", "card_writer") for n in range(60)]
    model.script(*[error(401, "authentication_error")] * 30)
    said = run("router", written(many), gives=1)
    assert "decisions came to nothing: model_auth" in said
    assert model.calls < 30


def test_agent_with_several_closed_answers_wants_one_named() -> None:
    lines = [("my card was stolen", "card"), ("I was charged twice", "payment"), ("hm", "oops")]
    assert "category, urgency: choose with --field" in run(
        "classifier", written(lines[:2]), gives=1
    )
    said = run("classifier", written(lines[:2]), "--field", "category")
    assert row(said, "accuracy, right abstentions included") == "100.0%"
    told = run("classifier", written(lines), "--field", "category", gives=2)
    assert "line 3: label 'oops'" in told
    lines[2] = ("zebra", "other")
    said = run("classifier", written(lines), "--field", "category", "--abstain", "other")
    assert row(said, "abstained, of lines to abstain from") == "100.0%"


def test_answer_of_true_or_false_is_closed_and_one_of_prose_is_not() -> None:
    text = "Ticket about order 4711\nRecord:\nOrder 4711, paid"
    said = run("record_reader", written([(text, "true")]))
    assert row(said, "accuracy, right abstentions included") == "100.0%"
    assert "it has none" in run("writer", written([("a", "b")]), gives=1)
    for options in ((), ("--tune",)):
        assert "agents/nobody.md: no such file" in run("nobody", written(), *options, gives=1)
    assert "nobody says what senior_router answers" in run("senior_router", written(), gives=1)


def test_wrong_lines_end_the_command_before_a_call(model: OfflineModel) -> None:
    Path("bad.jsonl").write_text('{"text": "a", "label": "writer"}\n{"text": 1}\n')
    assert "bad.jsonl: line 2: no text" in run("router", "bad.jsonl", gives=2)
    assert "line 2: label 'root'" in run("router", written([LINES[0], ("a", "root")]), gives=2)
    assert model.calls == 0


def test_result_is_recorded_compared_and_a_fall_fails(model: OfflineModel) -> None:
    lines = written()
    first = run("router", lines, "--record", "r.json")
    assert "Compared" not in first
    kept = json.loads(Path("r.json").read_text())
    assert kept["figures"]["accuracy"] == 0.8
    same = run("router", lines, "--record", "r.json", "--fail-on-fall", "0.02")
    assert row(same.split("Compared")[1], "accuracy, right abstentions included").split() == [
        *("80.0%", "80.0%", "0"),
    ]
    before = Path("r.json").read_text()
    model.script(*[chooses("writer", 0.9)] * 5)
    fell = run("router", lines, "--record", "r.json", "--fail-on-fall", "0.02", gives=1)
    assert "accuracy fell by 0.6000, more than 0.02" in fell
    assert Path("r.json").read_text() == before
    model.script(*[chooses("writer", 0.9)] * 5)
    run("router", lines, "--record", "r.json")
    assert json.loads(Path("r.json").read_text())["figures"]["accuracy"] == 0.2


def test_result_of_other_lines_or_of_the_offline_model_is_not_compared(
    here: Path, model: OfflineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("router", written(), "--record", "r.json")
    before, calls = Path("r.json").read_text(), model.calls
    other = run("router", written(LINES[:3]), "--record", "r.json", gives=2)
    assert "of other lines" in other
    assert "of other lines" in run(
        "router", written(), "--record", "r.json", "--limit", "2", gives=2
    )
    assert model.calls == calls  # nothing was paid for
    value = json.loads(before)
    Path("r.json").write_text(json.dumps({**value, "offline": True}))
    assert "kinds of model" in run("router", written(), "--record", "r.json", gives=2)
    Path("r.json").write_text(json.dumps({**value, "models": ["claude-opus-5-5"]}))
    assert "other models: claude-opus-5-5 before" in run("router", written(), "--record", "r.json")


def agents(folder: Path) -> Path:
    """The agents that ship, in a folder where they may be changed."""
    folder.mkdir()
    for file in definition.FOLDER.glob("*.md"):
        (folder / file.name).write_text(file.read_text())
    return folder


def matter(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text().split("---\n")[1])
    return found


def test_threshold_is_chosen_on_one_half_measured_on_the_other_and_written(here: Path) -> None:
    folder = agents(here / "agents")
    before = (folder / "router.md").read_text()
    lines = written([(f"{text} {n}", label) for n in range(6) for text, label in LINES])
    said = run("router", lines, "--tune", "--write", "--agents", str(folder))
    [chosen] = re.findall(r"^confidence: (0\.\d\d)$", said, re.M)
    assert "thresholds on 15 lines" in said
    assert "Measured on the other 15 lines" in said
    after = (folder / "router.md").read_text()
    assert matter(folder / "router.md") == matter_of(before) | {"confidence": float(chosen)}
    assert after.split("---\n", 2)[2] == before.split("---\n", 2)[2]
    assert "claude-sonnet" not in said  # the first answer alone


def matter_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_a_field_of_a_file_is_changed_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    text = "--- \nname: a # who\nconfidence: 0.5\nmodel: haiku\n---\nPrompt.\n\n---\nMore.\n"
    file.write_text(text)
    evaluate.change(file, {"confidence": 0.25})
    assert file.read_text() == text.replace("0.5", "0.25")
    evaluate.change(file, {"confidence": None, "fallback": None})
    assert file.read_text() == text.replace("confidence: 0.5\n", "")
    evaluate.change(file, {"confidence": 0.5})
    assert file.read_text().split("---\nPrompt")[0].endswith("model: haiku\nconfidence: 0.5\n")


def test_baseline_is_measured_on_the_same_half(here: Path) -> None:
    pytest.importorskip("sklearn")
    lines = written([(f"{text} {n}", label) for n in range(4) for text, label in LINES])
    train = written([LINES[0], LINES[1], LINES[2], LINES[4]], "train.jsonl")
    said = run("router", lines, "--tune", "--baseline", train)
    for who in ("first answer of the agent", "TF-IDF, logistic regression"):
        assert sum(line.startswith(who) for line in said.splitlines()) == 2


def test_sample_is_drawn_the_same_again(model: OfflineModel) -> None:
    def texts(*options: str) -> set[str]:
        model.requests.clear()
        run("router", written(), *options)
        return {request["messages"][0]["content"] for request in model.requests}

    first = texts("--limit", "2", "--seed", "1")
    assert len(first) == 2
    assert first == texts("--limit", "2", "--seed", "1")
    assert any(first != texts("--limit", "2", "--seed", str(n)) for n in range(2, 5))


def test_what_strangers_wrote_is_text_on_the_screen_and_in_the_file(here: Path) -> None:
    text = "[red]card[/red]\x1b[31m\u202e stolen"
    said = run("router", written([(text, "complaint_writer")]), "--failures", "f.jsonl")
    assert "[red]card[/red]" in said
    assert "\x1b" not in said
    assert "\u202e" not in said
    raw = (here / "f.jsonl").read_bytes()
    assert b"\x1b" not in raw
    assert json.loads(raw)["text"] == text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--fail-on-fall", "0.1"), "needs --record"),
        (("--tune", "--record", "r.json"), "--tune chooses a threshold"),
        (("--write",), "need --tune"),
        (("--baseline", "t.jsonl"), "need --tune"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_that_do_not_go_together_are_refused(options: tuple[str, ...], told: str) -> None:
    assert told in run("router", written(), *options, gives=2)


def test_several_at_once_say_the_same_as_one_after_the_other() -> None:
    lines = [evaluate.Line(n, text, None) for n, (text, _) in enumerate(LINES * 4)]
    with evaluate.place({}) as where:
        asked = evaluate.asking("router")
        found = [evaluate.decide(where, asked, lines, at_once=n)[0] for n in (1, 8)]
    said = [[(d.line.number, d.said, d.sure) for d in each] for each in found]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "change",
    [
        {"figures": []},
        {"figures": {}},
        {"figures": {"accuracy": None}},
        {"figures": {"accuracy": float("nan")}},
        {"figures": {"accuracy": 1, "coverage": "x"}},
        {"models": "claude"},
        {"models": [["x"]]},
        {"version": 3},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_result_stays_as_it_is_and_costs_no_call(
    model: OfflineModel, change: dict[str, Any]
) -> None:
    run("router", written(), "--record", "r.json")
    calls = model.calls
    Path("r.json").write_text(json.dumps({**json.loads(Path("r.json").read_text()), **change}))
    before = Path("r.json").read_bytes()
    assert "r.json holds no recorded result" in run(
        "router", written(), "--record", "r.json", gives=2
    )
    assert (Path("r.json").read_bytes(), model.calls) == (before, calls)


def test_nested_record_is_no_result(model: OfflineModel) -> None:
    Path("r.json").write_text("[" * 200_000)
    assert "holds no recorded result" in run("router", written(), "--record", "r.json", gives=2)


@pytest.mark.parametrize("option", ["--failures", "--record"])
def test_file_that_cannot_be_written_shows_before_a_call(model: OfflineModel, option: str) -> None:
    Path("file").write_text("mine")
    for where in ("/proc/r.json", f"new/{'x' * 300}/r.json", "."):
        result = CliRunner().invoke(app, ["eval", "router", written(), option, where])
        assert result.exit_code in (1, 2)
        assert re.search(
            rf"{re.escape(where)} (cannot be written|holds no recorded)", result.output
        )
    assert model.calls == 0
    assert Path("file").read_text() == "mine"


def test_record_that_cannot_be_written_whole_leaves_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run("router", written(), "--record", "r.json")
    before = Path("r.json").read_bytes()

    def fails(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr("os.replace", fails)
    assert "r.json cannot be written: no room" in run(
        "router", written(), "--record", "r.json", gives=1
    )
    assert Path("r.json").read_bytes() == before
    assert [file.name for file in Path().iterdir() if file.name.startswith(".r")] == []


def test_models_of_a_record_are_text_on_the_screen() -> None:
    run("router", written(), "--record", "r.json")
    value = json.loads(Path("r.json").read_text())
    Path("r.json").write_text(json.dumps({**value, "models": ["\x1b[31mred"]}))
    said = run("router", written(), "--record", "r.json")
    assert "[31mred before" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([("a card", "writer")] * 3, "these have 1"),
        ([("zebra", "none")], "these have 0"),
        ([("!", "writer"), ("?", "card_writer")], "learns nothing"),
    ],
)
def test_lines_that_teach_nothing_show_before_a_call(
    model: OfflineModel, lines: list[tuple[str, str]], told: str
) -> None:
    pytest.importorskip("sklearn")
    train = written(lines, "train.jsonl")
    assert told in run("router", written(), "--tune", "--baseline", train, gives=2)
    assert model.calls == 0


@pytest.mark.parametrize("matter", ["confidence : 0.5", "confidence:\n  0.5", '"confidence": 0.5'])
def test_field_that_a_line_does_not_hold_is_not_changed_by_half(
    tmp_path: Path, matter: str
) -> None:
    file = tmp_path / "a.md"
    text = f"---\nname: a\n{matter}\n---\nPrompt.\n"
    for value in (None, 0.25):
        file.write_text(text)
        with pytest.raises(evaluate.NotMeasurableError, match="on one line each"):
            evaluate.change(file, {"confidence": value})
        assert file.read_text() == text


def test_endless_price_of_a_wrong_answer_is_refused() -> None:
    assert "Invalid value" in run("router", written(), "--tune", "--wrong-costs", "inf", gives=2)
