"""Processes of this machine: the only user of ``subprocess``, and of the process table.

A run's processes are found by an environment variable that all of them inherit. Process groups
and parents do not lead to all of them: torchrun starts each worker in a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from launcher.contract import protocol

if TYPE_CHECKING:
    import psutil

Answer = TypeVar("Answer")
PR_SET_PDEATHSIG = 1
KILL_LIMIT_S = 10.0


def read_output(argv: tuple[str, ...], timeout_s: float) -> str | None:
    """What a short command prints; None where it is missing, fails or takes too long."""
    try:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        return None
    end = _read_end(child, timeout_s)
    return end.out if end and end.code == 0 else None


@dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """What a command that has ended said, and its exit code."""

    code: int
    out: str
    err: str


def ask(
    argv: tuple[str, ...],
    limit_s: float,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> CommandEnd | None:
    """Runs a command to its end; None where it takes longer. Raises ``OSError`` without it.

    ``env`` is all of its environment, None for this process' own.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        # Ctrl-C at the terminal is the launcher's to act on.
        start_new_session=True,
    )
    return _read_end(child, limit_s)


def _read_end(child: subprocess.Popen[bytes], limit_s: float) -> CommandEnd | None:
    """What a command said until its end; None where it takes longer, and is killed."""
    try:
        out, err = (text.decode(errors="replace") for text in child.communicate(timeout=limit_s))
    except subprocess.TimeoutExpired:
        child.kill()
        # One that hangs in the kernel outlives SIGKILL (nvidia-smi, a broken GPU): left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_LIMIT_S)
        return None
    except BaseException:
        child.kill()
        raise
    return CommandEnd(code=child.returncode, out=out, err=err)


def start(argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str], console: Path) -> int:
    """Starts a process whose output goes to ``console``, and returns its pid.

    On Linux the process gets SIGTERM when the launcher dies, however it dies. Raises ``OSError``
    where the program or the folder is missing.
    """
    with console.open("ab") as output:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_dying_with_parent(),
        )
    _children[child.pid] = child
    return child.pid


def become(argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str]) -> NoReturn:
    """Goes on as another program, in this process and with its streams. Raises ``OSError``."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.chdir(cwd)
    os.execve(argv[0], argv, env)


def poll(pid: int) -> int | None:
    """Exit code of a process that ``start`` returned, as in a shell; None while it runs."""
    code = _children[pid].poll()
    return None if code is None else (128 - code if code < 0 else code)


class Conversation:
    """A program that is talked to through its standard input and output."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> None:
        """``env`` adds to this process' own. Raises ``OSError`` where the program is missing."""
        import tempfile

        # A file, not a pipe: a full pipe that is not read would block the program.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the talk
        self._ending = threading.Lock()
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **(env or {})},
            # A Ctrl-C at the terminal is the launcher's to act on, not the connections'.
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.stdin, self.stdout = self._popen.stdin, self._popen.stdout

    def read(self, size: int, limit_s: float) -> bytes:
        """The next ``size`` bytes, fewer at its end; it is killed after ``limit_s`` seconds."""
        with self.limit(limit_s):
            return self.stdout.read(size)

    @contextlib.contextmanager
    def limit(self, limit_s: float) -> Iterator[None]:
        """Kills it where the block takes longer: whatever waits for it then goes on."""
        timer = threading.Timer(limit_s, self.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> tuple[int, str]:
        """Ends it, by force if needed; its exit code, and at the first call its stderr.

        At an interrupt two threads may end the same one: whoever used it, and whoever opened it.
        """
        with self._ending:
            said = self._end()
        code = self._popen.returncode
        return -signal.SIGKILL if code is None else code, said

    def _end(self) -> str:
        if self._said.closed:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self.stdin.close()
        try:
            self._popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            # One that hangs in the kernel outlives SIGKILL: it is left behind.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout=KILL_LIMIT_S)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        self.stdout.close()
        self._said.close()
        return said

    def interrupt(self) -> None:
        """Asks it to end, as Ctrl-C does."""
        self._popen.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends it at once; a reader in another thread sees the end of the stream."""
        self._popen.kill()

    def kill_all(self) -> None:
        """Ends it at once, with all that it has started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)


def find(**wanted: str) -> tuple[int, ...]:
    """Pids of the living processes that have these variables, whatever their parent."""
    return tuple(sorted(pid for pid, env in _environments() if wanted.items() <= env.items()))


def find_runs() -> dict[str, tuple[int, ...]]:
    """Pids of all living processes of runs, by run id."""
    runs: dict[str, tuple[int, ...]] = {}
    for pid, env in _environments():
        if run_id := env.get(protocol.RUN_ID):
            runs[run_id] = (*runs.get(run_id, ()), pid)
    return runs


def send(pids: tuple[int, ...], signum: signal.Signals) -> None:
    """Sends a signal to those that still live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    import psutil

    return psutil.pid_exists(pid)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process, as Ctrl-Z does."""
    return _ask(pid, lambda process: str(process.status())) == "stopped"


def parent_of(pid: int) -> int | None:
    """The pid of a process' parent; None where it has ended."""
    return _ask(pid, lambda process: process.ppid())


def variable_of(pid: int, name: str) -> str | None:
    """One environment variable of another process; None where it cannot be read."""
    return _ask(pid, lambda process: process.environ().get(name))


def _ask(pid: int, question: Callable[[psutil.Process], Answer]) -> Answer | None:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return question(psutil.Process(pid))
    return None


_children: dict[int, subprocess.Popen[bytes]] = {}


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Every readable process but this one, with its environment; a zombie's is empty."""
    # Imported where it is used: what comes before the agent's start delays every run.
    import psutil

    for process in psutil.process_iter():
        if process.pid != os.getpid():
            with contextlib.suppress(psutil.Error, OSError):
                yield process.pid, process.environ()


def _dying_with_parent() -> Callable[[], None] | None:
    """What a child calls before its program starts, on Linux."""
    if sys.platform != "linux":
        return None
    # Here and not in the child, which must import nothing.
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    # SIGTERM, not SIGKILL: torchrun must still end its workers, which have no such tie to it.
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
