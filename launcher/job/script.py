"""A script or module given in place of a job file: the job made from it, and how a job is named
after its script.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path, PurePosixPath

from launcher.contract.errors import InputError
from launcher.job.values import MAX_NAME
from launcher.yamlfile.source import similar_file

UNNAMED = "job"
"""The name of a job whose script's name has no character that a job's name may have."""

SCRIPT_ENDINGS = (".py", ".pyz")


def is_script(word: str) -> bool:
    """Whether the word names a script, or a folder with a ``__main__.py``, and no job file."""
    return word.endswith(SCRIPT_ENDINGS) or Path(word).is_dir()


def check_script(word: str, otherwise: str = "") -> None:
    """Raises ``InputError`` if the script is not there; ``otherwise`` is added to the fix."""
    path = Path(word)
    if path.is_dir() and not (path / "__main__.py").exists():
        raise InputError(f"{word} is a folder without __main__.py", "name a script or a job file")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{word}: no file, but a pipe or a device", "write the script into a file")
    if not path.exists():
        what = f"a link to {path.readlink()}, which is not there" if path.is_symlink() else ""
        raise InputError(f"{word}: {what or 'no such file'}", f"{similar_file(path)}{otherwise}")


def write_job(command: tuple[str, ...]) -> str:
    """The text of a job file that runs a command, named after its script or module."""
    job = {"name": name_of(command), "command": list(command)}
    return json.dumps(job, ensure_ascii=False)


def name_of(command: tuple[str, ...]) -> str:
    """``my-script`` for ``src/My script.py``."""
    if command[0] == "-m":
        words = command[1].removesuffix(".__main__")
    else:
        # A folder is called as such, not "." or "..".
        path = Path(command[0])
        words = PurePosixPath(path.resolve() if path.is_dir() else path).stem
    return as_name(words)


def as_name(words: str) -> str:
    """``my-script`` for ``My_script``; always a name that a job may have."""
    plain = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if name[:1].isdigit():
        name = f"{UNNAMED}-{name}"
    return name[:MAX_NAME].rstrip("-") or UNNAMED
