"""Files that results go to: whether they can be written is known before a result is paid for."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


class UnwritableError(Exception):
    """A file cannot be written; says which and why."""


def ready(file: Path) -> None:
    """Makes the folder of a file, and looks whether the file can be written. What stands in it stays.

    Raises:
        UnwritableError: it cannot.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = not file.exists()
        with file.open("ab"):
            pass
        if new:
            file.unlink()
    except (OSError, ValueError) as error:
        raise UnwritableError(f"{file} cannot be written: {error}") from error


def replace(file: Path, text: str) -> None:
    """Puts text into a file, at once: whoever dies meanwhile leaves what stood there.

    Raises:
        UnwritableError: it cannot be written; what stood there stays.
    """
    whole = file.resolve()
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        if whole.exists() and not whole.is_file():
            raise IsADirectoryError("it is no file")
        with NamedTemporaryFile(
            "w",
            encoding="utf-8",
            newline="",
            dir=whole.parent,
            prefix=f".{whole.name[:50]}.",
            delete=False,
        ) as new:
            try:
                new.write(text)
                new.flush()
                os.chmod(new.name, whole.stat().st_mode & 0o777 if whole.exists() else 0o644)
                os.replace(new.name, whole)
            except BaseException:
                Path(new.name).unlink(missing_ok=True)
                raise
    except (OSError, ValueError) as error:
        raise UnwritableError(f"{file} cannot be written: {error}") from error
