"""One conversation with the program on a host: how it is started there, how its functions are
called, and how long the host may be silent."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar, cast

from launcher.contract.errors import TargetError
from launcher.targets.agent_archive import HOST_FOLDER, read_host_sources, render_agent_archive
from launcher.targets.hosts.program.messages import (
    BEAT,
    MAGIC,
    Answered,
    FunctionCall,
    Record,
    Refusal,
    read_frame,
    write_frame,
)
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.errors import FULL, explain
from launcher.targets.subprocesses.conversation import Conversation

CONNECT_LIMIT_S = 10
OPEN_LIMIT_S = CONNECT_LIMIT_S * 2 + 10.0
"""Until the host's first word, through a jump host as well."""
REQUEST_LIMIT_S = 60.0
SSH_ENV = {"SSH_ASKPASS_REQUIRE": "never"}
"""BatchMode does not reach the client that ProxyJump starts, which would open a window to ask."""

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

# In double quotes, and without anything that a login shell, even csh or fish, would expand.
PYTHON_PROGRAM = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
WANTED = b"\0launcher-host: program\n"
"""What a host says that does not have this version of the program yet."""
LOADER = b"""
import os, sys
if sys.version_info < (3, 9):
    sys.exit("python3 is %d.%d there, 3.9 is needed" % tuple(sys.version_info[:2]))
stdin = sys.stdin.buffer
folder = os.path.join(os.path.expanduser(stdin.readline().decode().rstrip("\\n")), "bin")
name = stdin.readline().decode().strip()
path = os.path.abspath(os.path.join(folder, name))
if not os.path.exists(path):
    import io, shutil, zipfile
    sys.stdout.buffer.write(%r)
    sys.stdout.buffer.flush()
    archive = stdin.read(int(stdin.readline()))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    temporary = "%s.%d" % (path, int.from_bytes(os.urandom(6), "big"))
    try:
        zipfile.ZipFile(io.BytesIO(archive)).extractall(temporary)
        os.rename(temporary, path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not os.path.exists(path):
            raise
sys.path.insert(0, path)
from _launcher_node.targets.hosts.program.__main__ import main
main([path])
sys.stdout.flush()
os._exit(0)  # the modules need not be taken down one by one
""".replace(b"%r", repr(WANTED).encode())


class Session:
    """One conversation with the program on a host; for one thread at a time."""

    def __init__(
        self, host: Host, argv: tuple[str, ...], machine: str = "", entering: str = ""
    ) -> None:
        """``machine`` must answer, empty for any; ``entering`` is the command that leads there."""
        self.host, self._machine, self._entering = host, machine, entering
        try:
            self._talk = Conversation(argv, SSH_ENV)
        except (FileNotFoundError, PermissionError):
            fix = "install OpenSSH's client" if argv[0] == "ssh" else f"install {argv[0]}"
            raise TargetError(f"there is no {argv[0]} on this machine", fix) from None

    def begin(self) -> None:
        """Waits for the host's first word. Raises ``TargetError``."""
        with self._talk.limit(OPEN_LIMIT_S):
            self._write(hello(self.host))
            heard = b""
            while not heard.endswith(MAGIC):
                byte = self._talk.stdout.read(1)
                heard += byte
                # A login shell may print something before the host's first word.
                if not byte or len(heard) > 1 << 16:
                    self._fail(heard.replace(WANTED, b""))
                if heard.endswith(WANTED):
                    archive, _ = host_program()
                    self._write(b"%d\n%s" % (len(archive), archive))

    def _write(self, data: bytes) -> None:
        try:
            self._talk.stdin.write(data)
            self._talk.stdin.flush()
        except OSError:
            self._fail()

    def call(
        self,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """As ``call_within``, with the usual limit."""
        return self.call_within(REQUEST_LIMIT_S, function, *args, **kwargs)

    def call_within(
        self,
        limit_s: float,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Calls a function of the program there, by keywords alone; returns what it returns.

        Raises ``TargetError`` if the host refuses, or if the connection is gone, or silent for
        ``limit_s``.
        """
        self.ask(limit_s, function, *args, **kwargs)
        answer, _ = self.receive(limit_s)
        return cast(Result, cast(Answered, answer).value)

    def ask(
        self,
        limit_s: float,
        function: Callable[Arguments, object],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Calls a function that may need ``limit_s``; what it sends and returns is received later.

        Raises ``TargetError`` if the connection is gone, or is stuck.
        """
        assert not args, "arguments have names on the wire"
        blob = next((name for name, value in kwargs.items() if isinstance(value, bytes)), "")
        call = FunctionCall(
            function=f"{function.__module__.rpartition('.')[2]}.{function.__name__}",
            arguments={name: value for name, value in kwargs.items() if name != blob},
            blob=blob,
            limit_s=limit_s,
            machine=self._machine,
        )
        with self._talk.limit(limit_s):
            try:
                write_frame(self._talk.stdin, call, cast(bytes, kwargs.get(blob, b"")))
            except (OSError, ValueError):
                self._fail()

    def beat(self) -> None:
        """Tells a host that watches that this launcher lives; a cut connection is no error."""
        with contextlib.suppress(OSError, ValueError):
            self._talk.stdin.write(BEAT)
            self._talk.stdin.flush()

    def receive(self, limit_s: float | None = None) -> tuple[Record, bytes]:
        """The next message.

        Raises ``TargetError`` if the host refuses, or if the connection is gone, or silent.
        """
        with self._talk.limit(limit_s) if limit_s else contextlib.nullcontext():
            try:
                frame = read_frame(self._talk.stdout)
            except (OSError, ValueError):
                frame = None
        if frame and isinstance(refusal := frame[0], Refusal):
            what = "make room" if re.search(FULL, refusal.error) else "correct it"
            fix = refusal.fix or f"{what} there ({self._entering}), then the same command"
            raise TargetError(f"{self.host.name}: {refusal.error}", fix)
        return frame or self._fail()

    def _fail(self, printed: bytes = b"") -> NoReturn:
        """``printed`` is what came in place of an answer: nologin tells its reason there."""
        code, errors = self._talk.end()
        errors = errors.strip() or printed.decode(errors="replace")
        if code == -9:
            errors, code = f"{errors}\ntimed out", 255
        raise TargetError(*explain(self.host.name, code, errors, self._entering))

    def kill(self) -> None:
        """Ends the conversation from another thread."""
        self._talk.kill()

    def close(self) -> None:
        """Ends the conversation. Idempotent."""
        self._talk.end()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def hello(host: Host) -> bytes:
    """The bytes that start the program on a host, before the first message.

    The program itself goes only to a host that asks for it: its 41 kB need round trips.
    """
    _, version = host_program()
    loader = b"%d\n%s" % (len(LOADER), LOADER)
    # The host unpacks it to a folder: Python caches compiled modules only of folders.
    return loader + f"{host.state_dir}\nhost-{version}\n".encode()


@functools.cache
def host_program() -> tuple[bytes, str]:
    """The program as an archive, and a hash of it."""
    archive = render_agent_archive(read_host_sources(), HOST_FOLDER)
    return archive, hashlib.sha256(archive).hexdigest()[:16]
