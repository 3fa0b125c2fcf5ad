"""The house stands as DESIGN and README say: what a function imports, what a stage needs, what an event is."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.template import load

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = sorted(path.parent.name for path in ROOT.glob("functions/*/app.py"))
ASKS_A_MODEL = {"classify", "draft", "enrich_record"}
TEMPLATE = load(ROOT / "template.yaml")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_imports_the_model_only_if_it_asks_one(name: str) -> None:
    code = (
        "import sys, runpy; sys.path[:0] = ['shared']; "
        f"runpy.run_path('functions/{name}/app.py'); "
        "print('anthropic' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == str(name in ASKS_A_MODEL)


def test_a_request_that_names_its_flow_is_routed_without_what_asking_needs() -> None:
    code = (
        "import sys, runpy; sys.path[:0] = ['shared']; "
        "route = runpy.run_path('functions/route/app.py')['route']; "
        "inputs = {'Asked': {'flow': 'ticket', 'input': {'text': 'hello'}}}; "
        "from stafette.core.run import Run; "
        "run = Run('j', 't', 'acme', '', 'route', 1, 'o', 0.0); "
        "move = route.step.work(inputs, run, None); "
        "print(move.flow, move.next, move.agent, 'anthropic' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["ticket", "classify", "None", "False"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_importing_a_function_reads_no_setting_and_makes_no_client(name: str) -> None:
    code = (
        "import sys, runpy, boto3, os; sys.path[:0] = ['shared']; os.environ.clear(); "
        "boto3.client = None; "
        f"runpy.run_path('functions/{name}/app.py')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_thin(name: str) -> None:
    assert len((ROOT / "functions" / name / "app.py").read_text().splitlines()) <= 60


def test_every_folder_of_functions_is_in_the_template_and_the_other_way_round() -> None:
    declared = {function.name for function in TEMPLATE.functions.values()}
    assert declared == set(FUNCTIONS), "functions/ and template.yaml do not name the same"


@pytest.mark.parametrize("path", sorted(ROOT.glob("events/*.json")), ids=lambda path: path.name)
def test_every_event_is_a_request_that_a_flow_takes(path: Path) -> None:
    from flows.catalog import Asked, takers
    from stafette.core.body import open_body
    from stafette.core.messages import read_request

    value = open_body(path.read_text())
    assert value is not None
    request = read_request(value)
    assert takers(Asked(flow=request.flow, input=request.input))
    assert json.loads(path.read_text())["request_id"]


def sends(name: str) -> set[str]:
    """Functions that the source of a stage names as `then`, `over` or its join."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / "functions" / name / "app.py").read_text())):
        if (
            isinstance(node, ast.keyword)
            and node.arg in ("then", "over")
            and isinstance(node.value, ast.Constant)
            and node.value.value is not None
        ):
            found.add(node.value.value)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_stage_knows_the_queues_of_the_functions_it_sends_to(name: str) -> None:
    function = next(f for f in TEMPLATE.functions.values() if f.name == name)
    missing = {to for to in sends(name) if f"QUEUE_{to.upper()}" not in function.variables}
    assert not missing, f"{name} in template.yaml lacks the queues of {missing}"


@pytest.mark.parametrize("name", ["answer", "bury", "sweep"])
def test_who_sends_work_again_knows_every_queue_of_work(name: str) -> None:
    function = next(f for f in TEMPLATE.functions.values() if f.name == name)
    work = {to for each in FUNCTIONS for to in sends(each)} | firsts()
    missing = {f"QUEUE_{to.upper()}" for to in work} - function.variables.keys()
    assert not missing, f"{name} in template.yaml lacks {missing}"


def firsts() -> set[str]:
    from flows.catalog import FLOWS

    return {flow.first for flow in FLOWS.values()}


def test_every_agent_that_a_function_names_has_a_file() -> None:
    """`agent="..."` and `room("...")`: else a job learns of it, after minutes of tries."""
    named = set()
    for name in FUNCTIONS:
        for node in ast.walk(ast.parse((ROOT / "functions" / name / "app.py").read_text())):
            given: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg == "agent":
                given = [node.value]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "room":
                given = node.args
            named |= {(name, each.value) for each in given if isinstance(each, ast.Constant)}
    files = {path.stem for path in (ROOT / "shared" / "agents").glob("*.md")}
    missing = {
        f"functions/{name}: shared/agents/{agent}.md" for name, agent in named if agent not in files
    }
    assert named
    assert not missing, f"no such file: {missing}"


def test_what_a_stage_hands_on_is_what_the_next_one_takes() -> None:
    """The function that `then` names takes what this one gives; and each is somebody's `then`, or the first."""
    steps = {name: found for name in FUNCTIONS if (found := list(declared(name)))}
    wrong = [
        f"{name} gives {step['gives']} to {then}, which takes {[s['takes'] for s in steps[then]]}"
        for name, found in steps.items()
        for step in found
        if (then := step.get("then")) in steps
        and step["gives"] not in [each["takes"] for each in steps[then]]
    ]
    sent_to = {step.get("then") for found in steps.values() for step in found} | firsts()
    wrong += [f"nobody's `then` is {name}" for name in steps if name not in sent_to | {"route"}]
    assert not wrong


def declared(name: str) -> Iterator[dict[str, str]]:
    """What the decorators of a function's steps say in words: `takes`, `gives`, `then`."""
    for node in ast.walk(ast.parse((ROOT / "functions" / name / "app.py").read_text())):
        if isinstance(node, ast.Call):
            said = {
                str(each.arg): str(each.value.value)
                for each in node.keywords
                if isinstance(each.value, ast.Constant)
            }
            if {"takes", "gives"} <= said.keys():
                yield said
