"""REQ-SAM-03: what was built is held to what the template runs it on, before it is deployed."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from local.built import Built, BuiltError, Target, check, faults

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"python3.{sys.version_info.minor}"
HERE = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
MACHINES = {"arm64": 183, "x86_64": 62}

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Runtime: {{Type: String, Default: {runtime}}}
  Architecture: {{Type: String, Default: {architecture}}}
Resources:
  Library:
    Type: AWS::Serverless::LayerVersion
    Properties:
      ContentUri: Library
      CompatibleRuntimes: [!Ref Runtime]
      CompatibleArchitectures: [!Ref Architecture]
  Work:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: Work
      Handler: app.handler
      Runtime: !Ref Runtime
      Architectures: [!Ref Architecture]
      Layers: [!Ref Library]
"""


def elf(architecture: str) -> bytes:
    """The head of a shared object."""
    return b"\x7fELF\x02\x01\x01" + bytes(11) + MACHINES[architecture].to_bytes(2, "little")


def a_build(
    tmp_path: Path,
    *,
    runtime: str = PYTHON,
    architecture: str = HERE,
    template: str = TEMPLATE,
    app: str = "import helper\nhandler = helper.answer\n",
    objects: dict[str, bytes] | None = None,
) -> Path:
    build = tmp_path / "build"
    for folder in ("Library/python", "Work"):
        (build / folder).mkdir(parents=True)
    (build / "template.yaml").write_text(
        template.format(runtime=runtime, architecture=architecture)
    )
    (build / "Library/python/helper.py").write_text("def answer(event, context): ...\n")
    (build / "Work/app.py").write_text(app)
    for name, content in (objects or {}).items():
        (build / "Library/python" / name).write_bytes(content)
    return build


def test_req_sam_03_the_smallest_input_is_refused_by_name_and_by_header(tmp_path: Path) -> None:
    """REQ-SAM-03."""
    name = "_pydantic_core.cpython-311-x86_64-linux-gnu.so"
    build = a_build(
        tmp_path, runtime="python3.12", architecture="arm64", objects={name: elf("x86_64")}
    )
    with pytest.raises(BuiltError) as caught:
        check(build, {})
    told = str(caught.value).splitlines()
    assert told == [
        f"Library: python/{name} is no ELF file for arm64",
        f"Library: python/{name} is named for Python 311 on x86_64, not 312 on aarch64",
    ]


@pytest.mark.parametrize(
    ("name", "content", "fits"),
    [
        ("m.cpython-313-aarch64-linux-gnu.so", elf("arm64"), True),
        ("m.cpython-312-aarch64-linux-gnu.so", elf("arm64"), False),
        ("m.cpython-313-x86_64-linux-gnu.so", elf("arm64"), False),
        ("m.cpython-313-aarch64-linux-gnu.so", elf("x86_64"), False),
        ("m.cpython-313-darwin.so", b"\xcf\xfa\xed\xfe" + bytes(16), False),
        ("m.abi3.so", elf("arm64"), True),
        ("m.abi3.so", elf("x86_64"), False),
        ("libm.so.6", elf("arm64"), True),
        ("libm.so.6", elf("x86_64"), False),
        ("m.so", b"", False),
        ("m.some", b"", True),
    ],
)
def test_req_sam_03_every_shared_object_is_read(
    tmp_path: Path, name: str, content: bytes, fits: bool
) -> None:
    """REQ-SAM-03: the tag of the name, and the machine in the header."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_bytes(content)
    built = Built("Library", tmp_path, None)
    assert (list(faults(built, Target("python3.13", "arm64"))) == []) is fits


def test_req_sam_03_the_parameters_that_are_deployed_with_count(tmp_path: Path) -> None:
    """REQ-SAM-03: a build for one processor, deployed for the other."""
    name = "m.abi3.so"
    build = a_build(tmp_path, architecture="arm64", objects={name: elf("arm64")})
    assert "1 shared objects fit" in check(build, {"Architecture": "arm64"}).splitlines()[0]
    with pytest.raises(BuiltError, match=r"m\.abi3\.so is no ELF file for x86_64"):
        check(build, {"Architecture": "x86_64"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("      Runtime: !Ref Runtime\n", "      Runtime: python3.11\n"),
        ("      Architectures: [!Ref Architecture]\n", ""),
        ("      CompatibleArchitectures: [!Ref Architecture]\n", ""),
        ("      CompatibleRuntimes: [!Ref Runtime]\n", ""),
    ],
)
def test_req_sam_03_what_is_not_stated_alike_everywhere_is_refused(
    tmp_path: Path, old: str, new: str
) -> None:
    """REQ-SAM-03."""
    assert old in TEMPLATE
    build = a_build(tmp_path, runtime="python3.13", template=TEMPLATE.replace(old, new))
    with pytest.raises(BuiltError, match="not one runtime and processor for all"):
        check(build, {})


def test_req_sam_03_handlers_are_imported_from_the_build_alone(tmp_path: Path) -> None:
    """REQ-SAM-03."""
    assert "1 handlers import from the build" in check(a_build(tmp_path), {})


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("import boto3\nhandler = None\n", "No module named 'boto3'"),  # this machine has it
        ("import nonsense\nhandler = None\n", "No module named 'nonsense'"),
        ("handle = None\n", "has no attribute 'handler'"),
    ],
)
def test_req_sam_03_a_handler_that_does_not_import_is_refused(
    tmp_path: Path, app: str, told: str
) -> None:
    """REQ-SAM-03."""
    with pytest.raises(BuiltError, match=told):
        check(a_build(tmp_path, app=app), {})


def test_a_part_that_was_not_built_is_told_of(tmp_path: Path) -> None:
    build = a_build(tmp_path)
    (build / "Work/app.py").unlink()
    (build / "Work").rmdir()
    with pytest.raises(BuiltError, match="Work is not there"):
        check(build, {})


@pytest.mark.parametrize(
    ("runtime", "architecture"), [("python3.13", "arm64"), ("python3.11", "x86_64")]
)
def test_the_layer_asks_for_wheels_of_its_processor_and_compiles_for_good(
    runtime: str, architecture: str
) -> None:
    shown = subprocess.run(
        ["make", "-n", "build-Library"],
        cwd=ROOT / "shared",
        env={
            "PATH": "/usr/bin:/bin",
            "ARTIFACTS_DIR": "out",
            "RUNTIME": runtime,
            "ARCHITECTURE": architecture,
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    machine = {"arm64": "aarch64"}.get(architecture, architecture)
    assert f"--platform manylinux2014_{machine} " in shown
    assert f"--python-version {runtime.removeprefix('python')} " in shown
    assert "--only-binary=:all:" in shown
    assert f"{runtime} -m compileall -q --invalidation-mode unchecked-hash" in shown
