"""Whether a person stands in this project's repository, where its Makefile can be used."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder around the package: the repository's own, or the interpreter's packages."""


def in_repository() -> bool:
    """Whether ``make`` in the current folder would be this project's."""
    return (ROOT / "Makefile").is_file() and Path.cwd().is_relative_to(ROOT)
