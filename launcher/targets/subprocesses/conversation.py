"""Programs that the launcher talks to as long as they run, such as an ssh client."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping

from launcher.targets.subprocesses.short_command import KILL_LIMIT_S

END_LIMIT_S = 1.0
"""How long a program may take to end once its input is closed; then it is killed."""


class Conversation:
    """A program that is talked to through its standard input and output."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> None:
        """``env`` is added to this process' own. Raises ``OSError`` if the program is missing."""
        # A file, not a pipe: a full pipe that is not read would block the program.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the talk
        self._ending = threading.Lock()
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
            # A Ctrl-C at the terminal must reach the launcher alone.
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.stdin, self.stdout = self._popen.stdin, self._popen.stdout

    def read_bytes(self, size: int, limit_s: float) -> bytes:
        """The next ``size`` bytes, fewer at the end; after ``limit_s`` the program is killed."""
        with self.limit(limit_s):
            return self.stdout.read(size)

    @contextlib.contextmanager
    def limit(self, limit_s: float) -> Iterator[None]:
        """Kills the program if the block takes longer; whoever waits for it then goes on."""
        timer = threading.Timer(limit_s, self.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> tuple[int, str]:
        """Ends the program, by force if needed; its exit code, and at the first call its stderr.

        At an interrupt two threads may call this: its user's and its opener's.
        """
        with self._ending:
            errors = self._end()
        code = self._popen.returncode
        return -signal.SIGKILL if code is None else code, errors

    def _end(self) -> str:
        if self._errors.closed:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self.stdin.close()
        try:
            self._popen.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            # A program that hangs in the kernel outlives SIGKILL, and is left behind.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout=KILL_LIMIT_S)
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")
        self.stdout.close()
        self._errors.close()
        return errors

    def interrupt(self) -> None:
        """Asks the program to end, as Ctrl-C does."""
        self._popen.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kills the program; a reader in another thread sees the end of the stream."""
        self._popen.kill()

    def kill_all(self) -> None:
        """Kills the program, with all that it has started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
