"""Agents as files: `agents/<name>.md`, YAML front matter and a system prompt, as in Claude Code's subagents.

Owns reading and checking them. Knows no model and calls none. Files are read when first asked for, once a process.
"""

import re
from functools import lru_cache
from hashlib import sha256
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

# How many agents may stand behind one: a question is asked of few, then of a person.
MOST_FALLBACKS = 3

# Single powers. What runs an agent declares which of them it has.
Capability = Literal["read", "edit", "push", "merge", "deploy", "secrets", "send"]

# What the router says of a request that is for none of the agents: no agent may be called that.
NOBODY = "none"

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
        fallback: the agent that is asked when this one's answers fall short, for example one with a larger model.
        confidence: answers with a lower `confidence` than this fall short; None takes them as they are.
        cache: seconds for which an answer is given again to the same input of the same tenant; 0 asks every time.
        capabilities: the powers that its work needs.
        flow: the flow whose requests may be routed to it; None: requests are not routed to it.
        examples: requests that are for it, in the words of those who write them.
        prompt: the body of the file: the system prompt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME}$")
    description: str = Field(min_length=1)
    model: str = Field(min_length=1)
    tools: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")], ...] = ()
    max_tokens: int = Field(default=1024, ge=1, le=64_000)
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    fallback: str | None = Field(default=None, pattern=f"^{NAME}$")
    confidence: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    cache: int = Field(default=0, ge=0, le=30 * 86_400)
    capabilities: tuple[Capability, ...] = ()
    flow: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]{0,39}$")
    examples: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = Field(
        default=(), max_length=100
    )
    prompt: str = Field(min_length=1)

    @property
    def version(self) -> str:
        """Changes with anything that its file says."""
        return sha256(self.model_dump_json().encode()).hexdigest()[:16]

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

    @field_validator("flow")
    @classmethod
    def _check_flow(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("name") == NOBODY:
            raise ValueError(f"{NOBODY!r} says that a request is for no agent: choose another name")
        return value

    @field_validator("examples")
    @classmethod
    def _check_examples(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("flow", "") is None:
            raise ValueError("are of an agent that requests are routed to: name its flow too")
        return value

    @field_validator("tools", "capabilities", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Claude Code's files write tools as one line, `Read, Grep`."""
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",") if word.strip())
        return () if value is None else value


def load(name: str) -> Agent:
    """The agent of this name.

    Raises:
        DefinitionError: there is no such agent, its file is wrong, or one that it falls back on; says which file and
            which field.
    """
    return chain(name)[0]


def chain(name: str, folder: Path | None = None) -> tuple[Agent, ...]:
    """The agent of this name and those that it falls back on, in order; see `load`."""
    if not re.fullmatch(NAME, name):
        raise DefinitionError("the name of an agent is made of small letters, digits, `_` and `-`")
    folder = folder or FOLDER
    found = [read(folder / f"{name}.md")]
    while (next_one := found[-1].fallback) is not None:
        where = f"agents/{found[-1].name}.md: fallback:"
        passed = [agent.name for agent in found]
        if next_one in passed:
            circle = " -> ".join([*passed[passed.index(next_one) :], next_one])
            raise DefinitionError(f"{where} a circle: {circle}")
        if len(passed) > MOST_FALLBACKS:
            raise DefinitionError(f"{where} {MOST_FALLBACKS} agents in a row are the most")
        file = folder / f"{next_one}.md"
        if not file.exists():
            raise DefinitionError(f"{where} there is no agent {next_one}")
        found.append(read(file))
    return tuple(found)


def names(folder: Path | None = None) -> list[str]:
    """The names of all agents, sorted."""
    return sorted(file.stem for file in (folder or FOLDER).glob("*.md"))


@lru_cache(maxsize=256)
def read(file: Path) -> Agent:
    """Reads one agent's file; see `load`."""
    where = f"agents/{file.name}"
    try:
        found = _FRONT_MATTER.match(file.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise DefinitionError(f"{where}: no such file") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise DefinitionError(f"{where}: cannot be read: {exc}") from exc
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
