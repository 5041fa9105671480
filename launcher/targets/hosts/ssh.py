"""Conversations with hosts through the OpenSSH client: its options, shared connections, and how
long a host may be silent.

The remote command is the same for every host and request. Requests, with all arguments and
variables, go through standard input as data: no shell reads any of it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from launcher.contract.errors import TargetError
from launcher.targets.agent_archive import HOST_FOLDER, read_host_sources, render_agent_archive
from launcher.targets.at_once import settle
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.program.messages import Answered, FunctionCall, Refusal
from launcher.targets.hosts.program.wire import MAGIC, Record, read_frame, write_frame
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh_errors import FULL, explain
from launcher.targets.subprocesses import short_command
from launcher.targets.subprocesses.conversation import Conversation

CONNECT_LIMIT_S = 10
OPEN_LIMIT_S = CONNECT_LIMIT_S * 2 + 10.0
"""Until the host's first word, through a jump host as well."""
REQUEST_LIMIT_S = 60.0
CONTROL_LIMIT_S = 5.0
"""How long the process that holds a shared connection may take to stop sharing it."""
MOST_NAMED = 8
"""So many of the hosts that failed are named in one error."""
SSH_ENV = {"SSH_ASKPASS_REQUIRE": "never"}
"""BatchMode does not reach the client that ProxyJump starts, which would open a window to ask."""

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

Result = TypeVar("Result")
Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")


class Ssh:
    """Opens sessions to an inventory's hosts, over connections that a user's launchers share."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._control = make_control_dir()
        self._opening: set[Session | Conversation] = set()
        self._is_interrupted = False
        self.machines: dict[str, str] = {}
        """The machine that must answer, by the host's name: another may have the name by now."""

    def argv(self, host: Host, *, terminal: bool = False) -> tuple[str, ...]:
        """The ssh client with everything but the remote command."""
        inventory = self._inventory
        options = [
            "BatchMode=yes",
            f"ConnectTimeout={CONNECT_LIMIT_S}",
            # A cut connection is noticed within 15 s, by the client itself.
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "ControlMaster=auto",
            # Seconds that it stays after the last session.
            "ControlPersist=60",
            f"ControlPath={self._control}/%C",
            # Users set these for their own log-ins: a tmux in place of our command, or a forwarded
            # port, which a second session could not open.
            "RemoteCommand=none",
            "ClearAllForwardings=yes",
            *(("StrictHostKeyChecking=accept-new",) if inventory.accept_new else ()),
        ]
        words = (word for option in options for word in ("-o", option))
        return (
            *host.ssh(inventory.ssh_config, "-t" if terminal else "-T", *words),
            "--",
            host.name,
        )

    def entering(self, host: Host) -> str:
        """The command with which a person looks into a host."""
        return f"ssh {host.way(self._inventory.ssh_config)}"

    def fetching(self, host: Host, folder: str) -> str:
        """The command that brings a folder of a host here."""
        return f"scp -r {host.way(self._inventory.ssh_config, port='-P')}:{folder} ."

    def open(self, host: Host) -> Session:
        """A conversation with a host. Raises ``TargetError`` with the fix."""
        # Made again: XDG_RUNTIME_DIR goes at the user's last log-out, and ssh would not start.
        self._control = make_control_dir()
        argv = (*self.argv(host), f'exec python3 -S -c "{PYTHON_PROGRAM}"')
        try:
            return self._open(host, argv)
        except TargetError:
            # After a reboot of the host a shared connection is dead: try a new one.
            if self._is_interrupted or not self.disconnect(host):
                raise
        return self._open(host, argv)

    def _open(self, host: Host, argv: tuple[str, ...]) -> Session:
        session = Session(host, argv, self.machines.get(host.name, ""), self.entering(host))
        self._opening.add(session)
        try:
            if self._is_interrupted:
                session.kill()
            session.begin()
        finally:
            self._opening.discard(session)
        return session

    @contextlib.contextmanager
    def feed(self, host: Host, command: str) -> Iterator[Conversation]:
        """A command in the shell of a host, for the block; an interrupt kills it."""
        talk = Conversation((*self.argv(host), command), SSH_ENV)
        self._opening.add(talk)
        try:
            yield talk
        finally:
            self._opening.discard(talk)
            talk.end()

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Calls ``work`` on all items at once; returns the results in order.

        Raises one ``TargetError`` for all hosts that failed, after all have ended.
        """
        # An interrupt must not wait: the caller ends what the threads wait for.
        futures = settle(work, items, may_leave=True)
        errors = [error for error in (future.exception() for future in futures) if error]
        for error in errors:
            if not isinstance(error, TargetError):
                raise error
        if errors:
            raise joined(errors)  # type: ignore[arg-type]
        # Ended by nobody: all futures are done.
        return [future.result() for future in futures]

    def try_each(
        self, work: Callable[[Session], Result], hosts: Iterable[Host]
    ) -> list[Result | TargetError]:
        """Calls ``work`` with a session to each host; returns results or errors, in order."""

        def attempt(host: Host) -> Result | TargetError:
            try:
                with self.open(host) as session:
                    return work(session)
            except TargetError as error:
                return error

        return self.each(attempt, hosts)

    @contextlib.contextmanager
    def sessions(
        self,
        hosts: Iterable[Host],
        *,
        away: dict[str, TargetError] | None = None,
        first: Callable[[Session], None] = lambda session: None,
    ) -> Iterator[dict[str, Session]]:
        """Opens a session to each host for the block, by name; raises as ``each`` does.

        ``first`` is called with each session as soon as it is open, without waiting for others.
        ``away`` gets the errors of hosts that are not reached, in place of raising them.
        """
        opened: dict[str, Session] = {}
        errors: dict[str, TargetError] = {}
        self._is_interrupted = False

        def open_one(host: Host) -> None:
            try:
                opened[host.name] = self.open(host)
                first(opened[host.name])
            except TargetError as error:
                errors[host.name] = error

        try:
            self.each(open_one, hosts)
            if errors and away is None:
                raise joined(list(errors.values()))
            if away is not None:
                away.update(errors)
            yield opened
        except KeyboardInterrupt:
            # Threads may still open or send, and the end of this process waits for them.
            self._is_interrupted = True
            for session in (*opened.values(), *self._opening):
                session.kill()
            raise
        finally:
            self.each(lambda session: session.close(), opened.values())

    def disconnect(self, host: Host) -> bool:
        """Stops sharing the connection, so that the next is new; returns whether there was one.

        Sessions over it continue: they may belong to another launcher.
        """
        control = ("ssh", "-O", "stop", *self.argv(host)[1:])
        # The process of this machine that holds the shared connection answers at once, or hangs.
        return short_command.read_output(control, timeout_s=CONTROL_LIMIT_S) is not None


def joined(errors: list[TargetError]) -> TargetError:
    """One error out of several hosts'."""
    if len(errors) == 1:
        return errors[0]
    whats = "\n  ".join(error.what for error in errors[:MOST_NAMED])
    more = f"\n  and {len(errors) - MOST_NAMED} more" if len(errors) > MOST_NAMED else ""
    hints = list(dict.fromkeys(error.hint for error in errors if error.hint))
    return TargetError(f"{len(errors)} hosts failed:\n  {whats}{more}", hints[0] if hints else "")


def make_control_dir() -> Path:
    """A private folder with a short path: a socket's path has at most 104 bytes."""
    # One per user and not per launcher, so that a killed launcher leaves no folder behind.
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # XDG_RUNTIME_DIR may be another user's after su, or may be missing.
    is_fit = os.access(base, os.W_OK | os.X_OK) and len(base) < 32
    folder = Path(base if is_fit else "/tmp", f"launcher-ssh-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise TargetError(
            f"{folder} is not yours alone, so no connection can be shared there",
            f"rm -r {folder}, or set XDG_RUNTIME_DIR to a folder of your own",
        )
    return folder


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
            seen = b""
            while not seen.endswith(MAGIC):
                byte = self._talk.stdout.read(1)
                seen += byte
                # A login shell may print something before the host's first word.
                if not byte or len(seen) > 1 << 16:
                    self._fail(seen.replace(WANTED, b""))
                if seen.endswith(WANTED):
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
        assert not args, "arguments have names on the wire"
        with self._talk.limit(limit_s):
            self._send(limit_s, function, kwargs)
            answer, _ = self.receive()
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
        with self._talk.limit(limit_s):
            self._send(limit_s, function, kwargs)

    def _send(self, limit_s: float, function: Callable[..., object], given: dict[str, Any]) -> None:
        blob = next((name for name, value in given.items() if isinstance(value, bytes)), "")
        asked = FunctionCall(
            function=f"{function.__module__.rpartition('.')[2]}.{function.__name__}",
            arguments={name: value for name, value in given.items() if name != blob},
            blob=blob,
            limit_s=limit_s,
            machine=self._machine,
        )
        try:
            write_frame(self._talk.stdin, asked, given.get(blob, b""))
        except (OSError, ValueError):
            self._fail()

    def say(self, byte: bytes) -> None:
        """Sends ``BEAT`` to a host that watches; a cut connection is no error."""
        with contextlib.suppress(OSError, ValueError):
            self._talk.stdin.write(byte)
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
        code, said = self._talk.end()
        said = said.strip() or printed.decode(errors="replace")
        if code == -9:
            said, code = f"{said}\ntimed out", 255
        raise TargetError(*explain(self.host.name, code, said, self._entering))

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
