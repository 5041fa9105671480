"""Runs programs on this host; the only user of ``subprocess`` here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1


def read_output(
    argv: Sequence[str], timeout_s: float = 20.0, env: Mapping[str, str] | None = None
) -> str | None:
    """What a short command prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
            env=None if env is None else dict(env),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def feed(argv: Sequence[str], chunks: Iterable[bytes]) -> str:
    """Feeds ``chunks`` to a command; returns its error output if it fails, else nothing."""
    import tempfile  # here, as its import would delay each session

    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=said, stderr=said)
        assert child.stdin is not None
        for chunk in chunks:
            # After a failure read the rest, as the sender waits until it is taken.
            with contextlib.suppress(OSError):
                child.stdin.write(chunk)
        with contextlib.suppress(OSError):
            child.stdin.close()
        code = child.wait()
        said.seek(0)
        return "" if code == 0 else said.read().decode(errors="replace").strip() or "failed"


def start_keeper(argv: Sequence[str], env: Mapping[str, str], spec: bytes, log: Path) -> int:
    """Starts a process that outlives this session, sends it ``spec``, and returns its pid.

    The spec has secrets, so it goes through standard input and not through a file or arguments.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            env=dict(env),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert child.stdin is not None
    child.stdin.write(spec)
    child.stdin.close()
    child.returncode = 0  # nobody here waits for it
    return child.pid


class Child:
    """The program that a keeper keeps."""

    def __init__(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], console: Path):
        with console.open("ab") as output:
            self._popen = subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.pid = self._popen.pid

    def exit_code(self) -> int | None:
        """The exit code as in a shell; None while it runs."""
        code = self._popen.poll()
        return 128 - code if code is not None and code < 0 else code


def _die_with_parent() -> None:
    # Not SIGKILL: the agent must still end its workers, which do not die with the keeper.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == 1:
        os._exit(1)
