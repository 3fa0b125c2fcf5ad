"""REQ-LLM-07: what the service does not compile is found before it is asked for, and named by its field."""

import ast
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel, create_model

from flows.catalog import ANSWERS
from local.functions import Functions
from local.machine import TEMPLATE
from local.template import load
from stafette.agent import route
from stafette.agent.answer import output_format
from stafette.agent.schema import MOST_OPTIONAL, MOST_UNIONS, SchemaError, faults_of
from stafette.clock import now

FUNCTIONS = Path(__file__).resolve().parents[2] / "functions"


class Leaf(BaseModel):
    kind: Literal["a", "b"]
    size: int = Field(ge=1, le=9)


class Good(BaseModel):
    name: str = Field(min_length=1, max_length=9)
    leaves: list[Leaf]
    best: Leaf | None
    flag: bool = False


class Tree(BaseModel):
    kids: list["Tree"]


class Open(BaseModel):
    by_name: dict[str, int]


class Anything(BaseModel):
    more: Any


class Pair(BaseModel):
    pair: tuple[int, str]


class Kept(BaseModel):
    inner: Open
    trees: list[Tree]


def test_model_within_the_subset_has_no_faults_and_its_bounds_are_not_sent() -> None:
    assert faults_of(Good.model_json_schema()) == []
    assert "minLength'" not in str(output_format(Good))


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (Tree, r"Tree: kids\[\]: Tree holds itself"),
        (Open, "Open: by_name: an object of any keys"),
        (Anything, "Anything: more: any value"),
        (Pair, "Pair: pair: a list whose items have no one type"),
        (Kept, r"inner\.by_name: an object of any keys; trees\[\]\.kids\[\]: Tree holds itself"),
        (RootModel[list[int]], "it is no object"),
        (
            create_model("Many", **{f"f{n}": (int, 0) for n in range(MOST_OPTIONAL + 1)}),  # type: ignore[call-overload]
            "25 fields that may be left out; 24 are the most",
        ),
        (
            create_model("Unions", **{f"f{n}": (int | str, ...) for n in range(MOST_UNIONS + 1)}),  # type: ignore[call-overload]
            "17 unions; 16 are the most",
        ),
        (create_model("Long", f=(Literal[tuple(f"value-{n}" for n in range(2000))], ...)), "bytes"),  # type: ignore[call-overload]
    ],
    ids=lambda value: value.__name__.split("[")[0] if isinstance(value, type) else "",
)
def test_req_llm_07_what_the_service_does_not_compile_is_named(
    model: type[BaseModel], fault: str
) -> None:
    with pytest.raises(SchemaError, match=fault) as refused:
        output_format(model)
    assert refused.value.reason == "schema_unsupported"


def asked_for() -> list[tuple[str, str]]:
    """Every function that asks, and the name of the model that it wants an answer of."""
    return sorted(
        (file.parent.name, keyword.value.id)
        for file in FUNCTIONS.glob("*/app.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "answer" and isinstance(keyword.value, ast.Name)
    )


@pytest.mark.parametrize(("function", "name"), asked_for())
def test_req_llm_07_every_answer_that_a_function_asks_for_compiles(
    function: str, name: str
) -> None:
    template = load(TEMPLATE)
    [known] = [each for each in template.functions.values() if each.name == function]

    class Clock:
        now = staticmethod(now)

    functions = Functions(Clock(), {}, {})  # type: ignore[arg-type]
    functions._handler(known)
    answer = getattr(sys.modules[functions._modules[-1]], name)
    functions.unload()
    assert faults_of(answer.model_json_schema()) == []


@pytest.mark.parametrize("agent", sorted(ANSWERS))
def test_req_llm_07_what_each_agent_answers_compiles(agent: str) -> None:
    assert faults_of(ANSWERS[agent].model_json_schema()) == []
    assert output_format(ANSWERS[agent])


@pytest.mark.parametrize("count", [2, 100])
def test_req_llm_07_a_choice_among_many_agents_compiles(count: int) -> None:
    answer = route.answer_of(tuple(f"an_agent_with_a_name_{n}" for n in range(count)))
    assert faults_of(answer.model_json_schema()) == []
    assert output_format(answer)


def test_the_functions_that_ask_are_found() -> None:
    assert {"classify", "enrich_record", "draft"} <= {function for function, _ in asked_for()}
