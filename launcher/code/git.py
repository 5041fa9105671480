"""Asks git about a folder, and runs nothing that the repository's own settings name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LIMIT_S = 60.0
# The repository of another user is read too, and its settings must not start a program.
GIT = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")


def read_git(folder: Path, *words: str) -> bytes | None:
    """What ``git WORDS`` prints there; None if it fails, takes too long or is missing."""
    # GIT_DIR and its like, as in a git hook, would lead to another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            (*GIT, *words),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def find_repository(folder: Path) -> Path | None:
    """The top folder of the git repository around a folder; None outside of one."""
    # Most folders outside of a repository need no start of git to find out.
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    top = read_git(folder, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(top.rstrip(b"\n"))) if top else None
