"""The OpenSSH client: its options, connections that are shared, sessions to many hosts at once.

The remote command is the same for every host and request. Requests, with all arguments and
variables, go through standard input as data: no shell reads any of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from launcher.contract.errors import TargetError
from launcher.targets.at_once import settle
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.session import (
    CONNECT_LIMIT_S,
    PYTHON_PROGRAM,
    SSH_ENV,
    Session,
)
from launcher.targets.subprocesses import short_command
from launcher.targets.subprocesses.conversation import Conversation

CONTROL_LIMIT_S = 5.0
"""How long the process that holds a shared connection may take to stop sharing it."""
MOST_NAMED = 8
"""So many of the hosts that failed are named in one error."""

Result = TypeVar("Result")
Item = TypeVar("Item")


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
