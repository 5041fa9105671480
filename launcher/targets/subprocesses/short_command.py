"""Runs short programs to their end, and returns what they print.

The program on hosts has this module too.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

LIMIT_S = 20.0
"""How long a program may take for which nobody names another limit."""
KILL_LIMIT_S = 10.0
"""How long a killed program may take to end: one that hangs in the kernel outlives SIGKILL."""


class CommandEnd:
    """The exit code and the output of a command that has ended."""

    # No dataclass: hosts do not import those, which takes long.
    def __init__(self, *, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def ask(
    argv: Sequence[str],
    limit_s: float,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> CommandEnd | None:
    """Runs a command to its end; None after ``limit_s``. Raises ``OSError`` if it is missing.

    ``env`` is its whole environment, None for this process' own.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        # A Ctrl-C at the terminal must reach the launcher alone.
        start_new_session=True,
    )
    try:
        out, err = (text.decode(errors="replace") for text in child.communicate(timeout=limit_s))
    except subprocess.TimeoutExpired:
        child.kill()
        # A command that hangs in the kernel (nvidia-smi, a broken GPU) outlives SIGKILL.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_LIMIT_S)
        return None
    except BaseException:
        child.kill()
        raise
    return CommandEnd(code=child.returncode, out=out, err=err)


def read_output(
    argv: Sequence[str], timeout_s: float = LIMIT_S, env: Mapping[str, str] | None = None
) -> str | None:
    """What a short command prints; None if it is missing, fails or takes too long."""
    try:
        end = ask(argv, timeout_s, env=env)
    except OSError:
        return None
    return end.out if end and end.code == 0 else None
