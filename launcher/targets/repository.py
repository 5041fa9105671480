"""This project's repository, where its Makefile can be used, and the image that it builds."""

from __future__ import annotations

from pathlib import Path

OWN_IMAGE = "fabric-train"
"""What ``make image`` builds, tagged by its flavor: ``cpu`` or ``cuda``."""
ROOT = Path(__file__).parents[2]
"""The folder around the package: the repository's own, or the interpreter's packages."""


def in_repository() -> bool:
    """Whether ``make`` in the current folder would be this project's."""
    return (ROOT / "Makefile").is_file() and Path.cwd().is_relative_to(ROOT)
