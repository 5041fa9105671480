"""Processes that this one starts and waits for, such as a node's agent.

The program on hosts has this module too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:  # hosts do not import typing, which takes long
    from typing import NoReturn

PR_SET_PDEATHSIG = 1
_children: dict[int, subprocess.Popen[bytes]] = {}


def start(argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str], console: Path) -> int:
    """Starts a process whose output goes to ``console``, and returns its pid.

    The process gets SIGTERM when this one dies, however it dies. Raises ``OSError``
    where the program or the folder is missing.
    """
    # Imported here: the child must import nothing before its program starts.
    import ctypes

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def die_with_parent() -> None:
        # SIGTERM, not SIGKILL: an agent must still end its workers, which do not die with it.
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    with console.open("ab") as output:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    _children[child.pid] = child
    return child.pid


def poll(pid: int) -> int | None:
    """Exit code of a process that ``start`` returned, as in a shell; None while it runs."""
    code = _children[pid].poll()
    return None if code is None else (128 - code if code < 0 else code)


def become(argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str]) -> NoReturn:
    """Replaces this process by another program, which keeps its streams. Raises ``OSError``."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.chdir(cwd)
    os.execvpe(argv[0], argv, env)
