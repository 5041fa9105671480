"""Starts, finds and signals processes of this host; the only user of ``subprocess`` here.

A run's processes are found by their environment, never by a pattern of names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from launcher.contract import protocol
from launcher.targets.hosts.program.records import TYPE_CHECKING

if TYPE_CHECKING:
    Child = subprocess.Popen[bytes]

KEEPER = "LAUNCHER_KEEPER"
"""Only a node's keeper has this variable."""
PR_SET_PDEATHSIG = 1


def read_output(
    argv: Sequence[str], timeout_s: float = 20.0, env: Mapping[str, str] | None = None
) -> str | None:
    """What a short command prints; None where it is missing, fails or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=True,
            env=env,
        )
        return done.stdout.decode(errors="replace")
    return None


def feed(argv: Sequence[str], chunks: Iterable[bytes]) -> str:
    """Feeds ``chunks`` to a command; returns its error output if it fails, else nothing."""
    import tempfile

    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=said, stderr=said)
        assert child.stdin is not None
        for chunk in chunks:
            # After a failure read the rest, as the sender waits until it is taken.
            with contextlib.suppress(OSError):
                child.stdin.write(chunk)
        with contextlib.suppress(OSError):
            child.stdin.close()
        # Ended by the command, whose input has ended, or with this session by the sender's limit.
        code = child.wait()
        said.seek(0)
        return "" if code == 0 else said.read().decode(errors="replace").strip() or "failed"


def start_keeper(
    argv: Sequence[str], env: Mapping[str, str], spec: bytes, log: Path, files: Sequence[int]
) -> int:
    """Starts a process that outlives this session, sends it ``spec``, and returns its pid.

    It has the open ``files`` too.

    The spec has secrets, so it goes through standard input and not through a file or arguments.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            env=env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=files,
        )
    assert child.stdin is not None
    child.stdin.write(spec)
    child.stdin.close()
    child.returncode = 0  # nobody here waits for it
    return child.pid


def start_child(argv: Sequence[str], cwd: str, env: Mapping[str, str], console: Path) -> Child:
    """Starts the program of a node, which gets SIGTERM when its keeper dies."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        # Not SIGKILL: the agent must still end its workers, which do not die with the keeper.
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == 1:
            os._exit(1)

    with console.open("ab") as output:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def find(run_id: str, node: int | None = None, *, keepers: bool | None = False) -> tuple[int, ...]:
    """Pids of a run's processes, only of ``node`` if given: keepers, all others, or None: both."""
    return tuple(
        pid
        for pid, env in _environments()
        if env.get(protocol.RUN_ID.encode()) == os.fsencode(run_id)
        and (node is None or env.get(protocol.NODE_INDEX.encode()) == b"%d" % node)
        and keepers in (None, KEEPER.encode() in env)
    )


def _environments() -> Iterator[tuple[int, dict[bytes, bytes]]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{name}/environ").read_bytes()
                if protocol.RUN_ID.encode() in text:
                    pairs = (item.partition(b"=") for item in text.split(b"\0"))
                    yield int(name), {key: value for key, _, value in pairs}


def send(pids: tuple[int, ...], signum: int) -> None:
    """Sends a signal to those that still live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
