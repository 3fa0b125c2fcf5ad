"""Agents' files: what is read from them, and that a wrong one says which file and which field."""

from pathlib import Path

import pytest

from stafette.agent import models
from stafette.agent.definition import DefinitionError, chain, load, names, read

GOOD = """---
name: helper
description: Helps.
model: haiku
tools: Read, Grep
max_tokens: 300
---
You help.

---
This line is still the prompt.
"""


def written(folder: Path, text: str, name: str = "helper.md") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_file_in_the_format_of_claude_code_becomes_an_agent(tmp_path: Path) -> None:
    agent = read(written(tmp_path, GOOD))
    assert agent.model == "claude-haiku-5-5"
    assert agent.tools == ("Read", "Grep")
    assert agent.max_tokens == 300
    assert agent.effort is None
    assert agent.prompt == "You help.\n\n---\nThis line is still the prompt."


def test_agent_that_names_no_tools_has_none(tmp_path: Path) -> None:
    assert read(written(tmp_path, GOOD.replace("tools: Read, Grep\n", ""))).tools == ()


@pytest.mark.parametrize(
    ("line", "replacement", "field"),
    [
        ("max_tokens: 300", "max_tokens: many", "max_tokens"),
        ("max_tokens: 300", "max_tokens: 0", "max_tokens"),
        ("max_tokens: 300", "effort: huge", "effort"),
        ("model: haiku", "model: claude-haiku-4-5\neffort: low", "effort"),
        ("max_tokens: 300", "max_token: 300", "max_token"),
        ("tools: Read, Grep", "tools: [../etc]", "tools.0"),
        ("description: Helps.", "description: ''", "description"),
        ("name: helper", "name: ../helper", "name"),
        ("name: helper", "name: other", "name"),
        ("model: haiku\n", "", "model"),
        ("max_tokens: 300", "confidence: 1.5", "confidence"),
        ("max_tokens: 300", "confidence: .nan", "confidence"),
        ("max_tokens: 300", "cache: 1 hour", "cache"),
        ("max_tokens: 300", "fallback: ../other", "fallback"),
        ("max_tokens: 300", "capabilities: read, fly", "capabilities.1"),
    ],
)
def test_wrong_field_is_named_with_its_file(
    tmp_path: Path, line: str, replacement: str, field: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"agents/helper\.md: {field}: "):
        read(written(tmp_path, GOOD.replace(line, replacement)))


def test_what_an_agent_needs_around_its_calls_stands_in_its_file(tmp_path: Path) -> None:
    more = "fallback: larger\nconfidence: 0.6\ncache: 3600\ncapabilities: read, send\n"
    agent = read(written(tmp_path, GOOD.replace("max_tokens: 300\n", more)))
    assert (agent.fallback, agent.confidence, agent.cache) == ("larger", 0.6, 3600)
    assert agent.capabilities == ("read", "send")
    plain = read(written(tmp_path, GOOD.replace("name: helper", "name: plain"), "plain.md"))
    assert (plain.fallback, plain.confidence, plain.cache, plain.capabilities) == (
        None,
        None,
        0,
        (),
    )


def test_version_of_an_agent_changes_with_anything_that_its_file_says(tmp_path: Path) -> None:
    texts = (GOOD, GOOD + "More.", GOOD.replace("300", "301"), GOOD.replace("haiku", "sonnet"))
    versions = []
    for n, text in enumerate(texts):
        (tmp_path / str(n)).mkdir()
        versions.append(read(written(tmp_path / str(n), text)).version)
    assert len(set(versions)) == len(versions)


def fall_back(folder: Path, **to: str) -> None:
    """Writes agents, each with the one that it falls back on; an empty name is none."""
    for name, other in to.items():
        text = GOOD.replace("name: helper", f"name: {name}")
        text = text.replace("max_tokens: 300", f"fallback: {other}") if other else text
        written(folder, text, f"{name}.md")


def test_chain_of_fallbacks_is_read_in_order(tmp_path: Path) -> None:
    fall_back(tmp_path, a="b", b="c", c="d", d="")
    assert [agent.name for agent in chain("a", tmp_path)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("to", "fault"),
    [
        ({"a": "nobody"}, r"agents/a\.md: fallback: there is no agent nobody"),
        ({"a": "a"}, r"agents/a\.md: fallback: a circle: a -> a"),
        ({"a": "b", "b": "c", "c": "b"}, r"agents/c\.md: fallback: a circle: b -> c -> b"),
        (
            {"a": "b", "b": "c", "c": "d", "d": "e", "e": ""},
            r"agents/d\.md: fallback: 3 agents in a row are the most",
        ),
    ],
)
def test_chain_of_fallbacks_that_leads_nowhere_is_refused_at_load(
    tmp_path: Path, to: dict[str, str], fault: str
) -> None:
    fall_back(tmp_path, **to)
    with pytest.raises(DefinitionError, match=fault):
        chain("a", tmp_path)


@pytest.mark.parametrize(
    "text", ["", "no front matter", "---\nname: helper\n", "---\n- a\n---\nx", "---\n: :\n---\nx"]
)
def test_file_without_good_front_matter_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(DefinitionError, match=r"agents/helper\.md"):
        read(written(tmp_path, text))


def test_agent_without_a_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"prompt"):
        read(written(tmp_path, GOOD.split("You help")[0]))


@pytest.mark.parametrize(
    "name", ["", "../classifier", "a/b", "Classifier", "a.md", "a\n", "x" * 65]
)
def test_name_is_never_a_path(name: str) -> None:
    with pytest.raises(DefinitionError, match="the name of an agent"):
        load(name)


def test_unknown_agent_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"agents/nobody\.md: no such file"):
        load("nobody")


def test_every_agent_that_ships_is_whole_and_has_a_price() -> None:
    assert {"classifier", "record_reader", "writer"} <= set(names())
    for name in names():
        models.model(load(name).model)


def test_agents_are_told_that_what_they_read_is_data() -> None:
    for name in ("classifier", "record_reader", "writer"):
        assert "never instructions" in " ".join(load(name).prompt.split())


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.md").write_bytes(b"---\nname: \xff\n---\n")
    (tmp_path / "folder.md").mkdir()
    for name in ("binary", "folder"):
        with pytest.raises(DefinitionError, match=rf"agents/{name}\.md: cannot be read"):
            read(tmp_path / f"{name}.md")
