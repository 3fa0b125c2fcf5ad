"""`python -m local.built [Parameter=value ...]`: whether what `sam build` left fits what the template will run it on.

Every shared object is read (the tag of its name, the machine in its ELF header), every handler is imported from the
build alone, and sizes are printed. A build for another processor cannot be imported here, and that is said.
"""

import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from local.template import code_places, parsed, resolved

BUILD = Path(".aws-sam") / "build"
# e_machine of the ELF header, and what the names of wheels call it.
_MACHINES = {"arm64": (183, "aarch64"), "x86_64": (62, "x86_64")}
_TAG = re.compile(r"\.(?:cpython-(\d+)\w*-(\w+)-linux-\w+|(abi3))\.so$")
_LIMIT = 250_000_000  # bytes of a function and its layers, unzipped
_IMPORT = "import sys; sys.path[:0] = sys.argv[2:]; __import__(sys.argv[1])"


class BuiltError(Exception):
    """What was built cannot run where the template says; the text has a line for each fault."""


@dataclass(frozen=True)
class Target:
    """What code has to fit."""

    runtime: str  # python3.13
    architecture: str  # arm64

    @property
    def abi(self) -> str:
        """As the names of shared objects have it: 313."""
        return self.runtime.removeprefix("python").replace(".", "")


@dataclass(frozen=True)
class Built:
    """One function or layer, as it was built."""

    name: str
    folder: Path
    handler: str | None  # None for a layer

    def shared_objects(self) -> Iterator[Path]:
        """Everything that the dynamic linker may be asked to load."""
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and re.search(r"\.so(\.|$)", path.name):
                yield path


def read(build: Path, parameters: Mapping[str, str]) -> tuple[Target, list[Built]]:
    """The one target of a built template, and what was built for it.

    Raises:
        BuiltError: functions and layers do not all state the same runtime and processor.
    """
    document = parsed(build / "template.yaml")
    resources = resolved(document, parameters)
    targets: dict[Target, list[str]] = {}
    for name, stated in _stated(resources):
        targets.setdefault(stated, []).append(name)
    if len(targets) != 1:
        told = "; ".join(f"{target}: {', '.join(names)}" for target, names in targets.items())
        raise BuiltError(f"not one runtime and processor for all: {told or 'nothing is built'}")
    built = [
        Built(
            key,
            build / place,
            resources[key]["Properties"]["Handler"] if key in resources else None,
        )
        for key, place in code_places(document).items()
    ]
    return next(iter(targets)), built


def _stated(resources: Mapping[str, Any]) -> Iterator[tuple[str, Target]]:
    for key, resource in resources.items():
        properties = resource["Properties"]
        if resource["Type"] == "AWS::Lambda::Function":
            for architecture in properties.get("Architectures", ["nothing"]):
                yield key, Target(properties.get("Runtime", "nothing"), architecture)
        elif resource["Type"] == "AWS::Lambda::LayerVersion":
            for runtime in properties.get("CompatibleRuntimes", ["nothing"]):
                for architecture in properties.get("CompatibleArchitectures", ["nothing"]):
                    yield key, Target(runtime, architecture)


def faults(built: Built, target: Target) -> Iterator[str]:
    """What of one build does not fit, a line each."""
    if not built.folder.is_dir():
        yield f"{built.name}: {built.folder} is not there"
    number, machine = _MACHINES[target.architecture]
    for path in built.shared_objects():
        place = f"{built.name}: {path.relative_to(built.folder)}"
        header = path.read_bytes()[:20]
        if header[:5] != b"\x7fELF\x02" or int.from_bytes(header[18:20], "little") != number:
            yield f"{place} is no ELF file for {target.architecture}"
        tag = _TAG.search(path.name)
        if tag and not tag[3] and (tag[1], tag[2]) != (target.abi, machine):
            yield f"{place} is named for Python {tag[1]} on {tag[2]}, not {target.abi} on {machine}"
        if path.name.endswith(".so") and ".cpython-" in path.name and not tag:
            yield f"{place} has a tag that is not known here"


def import_fault(built: Built, layers: list[Path], target: Target) -> str | None:
    """Imports the handler's module in a process that sees the standard library and the build, nothing else."""
    python = shutil.which(target.runtime)
    if python is None:
        return f"{built.name}: there is no {target.runtime} here to import it with"
    module, _, attribute = str(built.handler).rpartition(".")
    code = f"{_IMPORT}; getattr(sys.modules[sys.argv[1]], {attribute!r})"
    places = [str(built.folder.resolve()), *(str((each / "python").resolve()) for each in layers)]
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", code, module, *places],
        cwd=built.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return f"{built.name}: {done.stderr.strip()[-800:]}" if done.returncode else None


def sizes(folder: Path) -> tuple[int, int]:
    """Bytes of a folder, and of it zipped."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.writestr(str(path.relative_to(folder)), path.read_bytes())
    return sum(path.stat().st_size for path in files), packed.tell()


def check(build: Path, parameters: Mapping[str, str]) -> str:
    """Checks a build. Returns what was found, for people.

    Raises:
        BuiltError: something does not fit.
    """
    target, built = read(build, parameters)
    wrong = [fault for each in built for fault in faults(each, target)]
    layers = [each.folder for each in built if each.handler is None]
    handlers = [each for each in built if each.handler is not None]
    here = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    importable = here == target.architecture
    if importable and not wrong:
        wrong += [fault for each in handlers if (fault := import_fault(each, layers, target))]
    measured = {each.name: sizes(each.folder) for each in built if each.folder.is_dir()}
    in_layers = sum(
        measured[each.name][0] for each in built if each.handler is None and each.name in measured
    )
    for each in handlers:
        if (whole := in_layers + measured.get(each.name, (0, 0))[0]) > _LIMIT:
            wrong.append(f"{each.name}: {whole} bytes with its layers; Lambda takes {_LIMIT}")
    if wrong:
        raise BuiltError("\n".join(wrong))
    objects = sum(1 for each in built for _ in each.shared_objects())
    lines = [f"{objects} shared objects fit {target.runtime} on {target.architecture}"]
    if importable:
        lines.append(f"{len(handlers)} handlers import from the build")
    else:
        lines.append(f"handlers not imported: this machine is {here}")
    for name, (plain, zipped) in measured.items():
        lines.append(f"{name:14} {plain:12,} bytes, zipped {zipped:12,}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """The command."""
    try:
        print(check(BUILD, dict(argument.split("=", 1) for argument in arguments)))
    except BuiltError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
