"""Requirements as a build takes them: which file counts, those that it includes, and lines that are
refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from launcher.contract.errors import InputError

NAMES = ("requirements.txt", "pyproject.toml")
"""Looked for beside the script, then at the top of the code; the first that is there counts."""
_INCLUDE = re.compile(r"\s*(-r|--requirement|-c|--constraint)(?:[ =]\s*|(?=[^-\s]))(\S.*?)\s*$")
_LOCAL = re.compile(
    r"\s*(-e\b|--editable\b|(-f|--find-links)[ =]\s*(?!https?:)|\.{0,2}/|\.\s*$|.*@\s*file:|file:)"
)
"""Lines that name a folder or file, which the image does not have."""


def find_requirements(folders: list[Path]) -> Path | None:
    """The requirements of code; ``folders`` are where they may be, the nearest first."""
    paths = (folder / name for folder in folders for name in NAMES)
    return next((path for path in paths if path.is_file()), None)


def read_requirements(path: Path) -> dict[str, str]:
    """The texts of ``requirements.txt`` and of what it includes, by name; empty for none.

    Raises ``InputError`` for what cannot be read, or cannot be there in an image.
    """
    if path.suffix == ".toml":
        lines = _of_project(path)
        return {NAMES[0]: "".join(f"{line}\n" for line in lines)} if lines else {}
    files: dict[str, str] = {}
    _read_file(path, files, {})
    return files


def _read_file(path: Path, files: dict[str, str], names: dict[Path, str]) -> str:
    """Adds a file and those it includes; returns the name by which they include it."""
    if (known := path.resolve()) in names:
        return names[known]
    name = names[known] = NAMES[0] if not names else f"included-{len(names)}.txt"
    lines = _text_of(path).splitlines()
    for number, line in enumerate(lines):
        included = _INCLUDE.match(line)
        if included and "://" not in included[2]:
            option, target = included[1], re.sub(r"\s+#.*", "", included[2])
            lines[number] = f"{option} {_read_file(path.parent / target, files, names)}"
        elif _LOCAL.match(line):
            raise InputError(
                f"{path}:{number + 1}: {line.strip()}: is on this machine, not in the image",
                "leave it out: the code is in the image's working folder; for other packages "
                "wheels, with --wheelhouse DIR",
            )
    files[name] = "".join(f"{line}\n" for line in lines)
    return name


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no UTF-8 text: {error}", "write it in UTF-8") from None
    except OSError as error:
        what = f"{path}: cannot be read: {error.strerror}"
        raise InputError(what, "name one with --requirements FILE") from None


def _of_project(path: Path) -> list[str]:
    """The dependencies that a pyproject.toml names; none if it only configures tools."""
    try:
        project = tomllib.loads(_text_of(path)).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {error}", "correct it, or --requirements FILE") from None
    if "dependencies" in project.get("dynamic", ()):
        what = f"{path}: its dependencies are dynamic, so they are not in it"
        raise InputError(what, "--requirements FILE with the file that holds them")
    return list(project.get("dependencies", ()))
