"""Programs that tests run to their end."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 120.0


def run_program(
    argv: Sequence[str | Path], *, timeout: float = LIMIT_S, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """What it said, as text, and how it ended; ``options`` are those of ``subprocess.run``."""
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout, check=check, **options
    )


def write_python_program(path: Path, text: str) -> None:
    """A program in this Python. Its path may have a space, which ``#!`` alone does not take."""
    path.write_text(f"#!/usr/bin/env -S {shlex.quote(sys.executable)}\n{text}")
    path.chmod(0o755)
