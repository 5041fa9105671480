"""Processes of this machine: the only user of ``subprocess``, and of the process table.

A run's processes are found by an environment variable that all of them inherit. Process groups
and parents do not lead to all of them: torchrun starts each worker in a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from launcher.contract import protocol

if TYPE_CHECKING:
    import psutil

Answer = TypeVar("Answer")
PR_SET_PDEATHSIG = 1
KILL_LIMIT_S = 10.0
PIPE_BYTES = 1 << 16


def read_output(argv: tuple[str, ...], timeout_s: float) -> str | None:
    """What a short command prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


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
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    _children[child.pid] = child
    return child.pid


def start_early(argv: tuple[str, ...], *, env: Mapping[str, str]) -> int:
    """Starts a process that waits at its standard input, for ``tell``; returns its pid.

    What it says until then goes to a file without a name. It dies as those of ``start`` do.
    """
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    _children[child.pid] = child
    return child.pid


def tell(pid: int, text: bytes) -> bool:
    """Writes all that a process of ``start_early`` will read; False where it has ended."""
    child = _children[pid]
    assert child.stdin is not None
    # Less than a pipe holds, so that nobody waits.
    if child.poll() is not None or len(text) > PIPE_BYTES:
        return False
    with contextlib.suppress(BrokenPipeError), child.stdin as stream:
        stream.write(text)
    return True


def end_early(pid: int) -> None:
    """Ends a process of ``start_early``; 0 is none."""
    if pid:
        child = _children.pop(pid)
        assert child.stdin is not None
        child.stdin.close()
        child.kill()
        # One that hangs in the kernel outlives SIGKILL: it is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_LIMIT_S)


def poll(pid: int) -> int | None:
    """Exit code of a process that ``start`` returned, as in a shell; None while it runs."""
    code = _children[pid].poll()
    return None if code is None else (128 - code if code < 0 else code)


class Conversation:
    """A program that is talked to through its standard input and output."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> None:
        """``env`` adds to this process' own. Raises ``OSError`` where the program is missing."""
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


def _die_with_parent() -> None:
    # SIGTERM, not SIGKILL: torchrun must still end its workers, which have no such tie to it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


Tell = Callable[[str], None]
"""Sends one line to the process that waits; later calls are ignored."""


def in_background(work: Callable[[Tell], None], log: Path) -> str:
    """Runs ``work`` in a process that outlives this one and its terminal.

    Blocks until ``work`` tells its first line, which is returned; empty if it ended without one.
    Its output goes to ``log``. Only for a process without threads.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as told:
            return told.readline().rstrip("\n")
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    code, open_ends = 1, [writer]

    def tell(line: str) -> None:
        if open_ends:
            # Whoever waited may be gone; the work goes on without them.
            with contextlib.suppress(BrokenPipeError), os.fdopen(open_ends.pop(), "w") as stream:
                stream.write(line + "\n")

    try:
        _redirect(log)
        work(tell)
        code = 0
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        # Neither may lead back into the caller's frames, whatever a full disk says.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        # The run goes on without its log.
        output = nothing
    for source, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
