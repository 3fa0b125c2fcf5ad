"""Agents as files: `agents/<name>.md`, YAML front matter and a system prompt, as in Claude Code's subagents.

Owns reading and checking them. Knows no model and calls none. Files are read when first asked for, once a process.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from stafette.agent.models import ALIASES, MODELS
from stafette.core.errors import StafetteError

FOLDER = Path(__file__).parents[2] / "agents"

# What an agent may be called. It holds no dot and no slash, so that a name is never a path.
NAME = r"[a-z][a-z0-9_-]{0,63}"

_FRONT_MATTER = re.compile(
    r"\A---[ \t]*\n(?P<matter>.*?)^---[ \t]*\n(?P<prompt>.*)\Z", re.DOTALL | re.MULTILINE
)


class DefinitionError(StafetteError):
    """An agent's file is missing or is not what it should be."""

    reason = "agent_definition"


class Agent(BaseModel):
    """One agent.

    Attributes:
        name: the name of its file, without `.md`.
        description: what it is for, in a sentence that a commander can choose by.
        model: a model id of the Anthropic API, or one of `haiku`, `sonnet`, `opus`.
        tools: what it may use; none when the file names none.
        max_tokens: the most that one answer may be.
        effort: how hard it thinks before it answers; None: it answers at once, where its model can.
        prompt: the body of the file: the system prompt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME}$")
    description: str = Field(min_length=1)
    model: str = Field(min_length=1)
    tools: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")], ...] = ()
    max_tokens: int = Field(default=1024, ge=1, le=64_000)
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    prompt: str = Field(min_length=1)

    @field_validator("model")
    @classmethod
    def _name_the_model(cls, value: str) -> str:
        return ALIASES.get(value, value)

    @field_validator("effort")
    @classmethod
    def _check_effort(cls, value: str | None, info: ValidationInfo) -> str | None:
        known = MODELS.get(info.data.get("model", ""))
        if value is not None and known is not None and not known.effort:
            raise ValueError("its model takes no effort")
        return value

    @field_validator("tools", mode="before")
    @classmethod
    def _split_tools(cls, value: Any) -> Any:
        """Claude Code's files write tools as one line, `Read, Grep`."""
        if isinstance(value, str):
            return tuple(tool.strip() for tool in value.split(",") if tool.strip())
        return () if value is None else value


def load(name: str) -> Agent:
    """The agent of this name.

    Raises:
        DefinitionError: there is no such agent, or its file is wrong; says which file and which field.
    """
    if not re.fullmatch(NAME, name):
        raise DefinitionError("the name of an agent is made of small letters, digits, `_` and `-`")
    return read(FOLDER / f"{name}.md")


def names(folder: Path = FOLDER) -> list[str]:
    """The names of all agents, sorted."""
    return sorted(file.stem for file in folder.glob("*.md"))


@lru_cache(maxsize=256)
def read(file: Path) -> Agent:
    """Reads one agent's file; see `load`."""
    where = f"agents/{file.name}"
    try:
        found = _FRONT_MATTER.match(file.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise DefinitionError(f"{where}: no such file") from exc
    if not found:
        raise DefinitionError(
            f"{where}: does not open with front matter between two lines of `---`"
        )
    try:
        matter = yaml.safe_load(found["matter"])
    except yaml.YAMLError as exc:
        raise DefinitionError(f"{where}: front matter is not YAML: {exc}") from exc
    if not isinstance(matter, dict):
        raise DefinitionError(f"{where}: front matter is not a list of `field: value`")
    try:
        agent = Agent.model_validate({**matter, "prompt": found["prompt"].strip()})
    except ValidationError as exc:
        faults = [
            f"{where}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in exc.errors()
        ]
        raise DefinitionError("; ".join(faults)) from exc
    if agent.name != file.stem:
        raise DefinitionError(f"{where}: name: is {agent.name!r}, the file is called {file.stem!r}")
    return agent
