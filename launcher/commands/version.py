"""``launcher --version``: the version, the commit, and the torch that local processes would use."""

from __future__ import annotations

from pathlib import Path

from launcher import __version__
from launcher.code.git import read_git
from launcher.contract.errors import TargetError
from launcher.targets.interpreter import find_torch

PACKAGE = Path(__file__).resolve().parents[1]
HEAD = ("rev-parse", "--short=12", "HEAD")


def render_version() -> str:
    """Two lines, such as ``launcher 0.2.0 (commit 8856f4f4a1b2)`` and ``torch 2.13.0 (PYTHON)``."""
    try:
        python, torch = find_torch(None)
    except TargetError as error:
        torch, python = "none", error.what
    return f"launcher {__version__} (commit {find_commit()})\ntorch {torch} ({python})\n"


def find_commit() -> str:
    """The commit that was installed, else that of the checkout, whose files may differ from it."""
    written = PACKAGE / "COMMIT"  # by setup.py
    if written.exists():
        return written.read_text().strip()
    checkout = PACKAGE.parent
    is_own = (checkout / "pyproject.toml").exists() and (checkout / ".git").exists()
    # Changed files are not looked for: git would read each, which takes as long as all else.
    head = read_git(checkout, *HEAD) if is_own else None
    return f"{head.decode().strip()}, in a checkout" if head else "unknown"
