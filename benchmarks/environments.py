"""Environments of peers that this project's own has no place for; pip makes each once."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.commands import read

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
FOLDER = CACHE / "fabric-train-benchmarks"
INSTALL_S = 1200.0


def find_environment(requirement: str) -> Path:
    """The folder of its programs, beside the torch that is measured here.

    Raises BenchmarkError, with the last lines of pip, where it cannot be installed.
    """
    torch = f"torch=={metadata.version('torch').partition('+')[0]}"
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Without "=", which ``env`` takes for an assignment.
    folder = FOLDER / "-".join([requirement, torch, python]).replace("==", "-")
    ready, programs = folder / ".ready", folder / "bin"
    if not ready.exists():
        read((sys.executable, "-m", "venv", "--clear", str(folder)))
        # The build for CPUs is found where torch is asked for alone.
        for wanted in ((torch,), (torch, requirement)):
            read((str(programs / "pip"), "install", "--quiet", *wanted), INSTALL_S)
        ready.touch()
    return programs
