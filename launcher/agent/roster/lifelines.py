"""One node's connections to the nodes that it watches: a closed one says at once that one ended.

A closed connection alone proves nothing, because a switch may have cut it. So the node is dialled
again, and what this tells is posted to the state machine, which also looks at the node's beat:

- its port refuses, or answers with the name of another process: the process is gone;
- the same process answers: all is well;
- nothing answers: it counts as gone only if the connection was closed in an orderly way, as the
  kernel does for a process that ends. The address of a killed container goes with it.

A node to which no connection ever stood is judged by its silence alone, unless others have died
just now.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import math
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.agent.roster import events
from launcher.agent.roster.answering import (
    NAME_END,
    hear,
    keep_alive,
    most_connections,
    parse_lifeline,
)
from launcher.agent.roster.membership import Member
from launcher.contract.clock import Clock

DIAL_LIMIT_S = 2.0
"""How long a node may take to accept, and to say its name."""
RETRY_S, RETRY_MOST_S = 0.1, 10.0
"""The pause before a node is dialled again doubles between these."""
CLOSED = "its connection closed"
REFUSED = "its connections closed and its port refuses"
ANOTHER = "another process answers at its port"
log = logging.getLogger(__name__)

Key = tuple[str, str, str]
Address = tuple[int, tuple[Any, ...]]
"""Family and address of a socket."""


@dataclass(eq=False)
class Line:
    """The connection to one node, and what is known of the node."""

    member: Member
    port: int
    name: str
    stood: bool
    """Whether it ever stood, or may be presumed to have: then a refusal is a proof."""
    address: Address | None = None
    standing: socket.socket | None = None
    dialling: socket.socket | None = None
    connected: bool = False
    heard: bytes = b""
    orderly: bool = False
    """Whether the last connection that stood was closed in an orderly way."""
    told: str = ""
    """Why this node counts as gone, if that was told."""
    failures: int = 0
    due: float = -math.inf
    """When to dial next, or to give up the dialling."""

    @property
    def is_idle(self) -> bool:
        return self.standing is not None and self.dialling is None


class Lifelines:
    """Keeps the connections in a thread of its own, from the first node to watch until ``end``."""

    def __init__(self, post: Callable[[events.Event], None], clock: Clock) -> None:
        self._post, self._clock = post, clock
        self._lines: dict[Key, Line] = {}
        self._wanted: deque[tuple[tuple[Member, ...], bool]] = deque()
        self._found: deque[tuple[Line, Address | None]] = deque()
        self._asks: deque[int] = deque()
        self.has_stood = False
        """Whether any connection from here has ever stood."""
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._names = _Resolver(self._named)
        self._thread = threading.Thread(target=self._run, name="lifelines", daemon=True)
        self._is_started = False

    # -- any thread's side ---------------------------------------------------------------------
    def follow(self, members: tuple[Member, ...], *, presumed: bool = False) -> None:
        """These members are watched from now on, and no others; the first are the surest kept.

        ``presumed``: those that are new would answer if they lived, so a refusal is a proof.
        """
        self._wanted.append((members, presumed))
        if members and not self._is_started and not self._ending:
            self._is_started = True
            self._thread.start()
        self._ring()

    def ask(self, first: int) -> None:
        """Dials the first of the members now, though their connections stand."""
        self._asks.append(first)
        self._ring()

    def why(self, seat: str) -> str:
        """Why this seat counts as gone; empty where it does not."""
        return next(
            (line.told for line in (*self._lines.values(),) if line.member.seat == seat), ""
        )

    def end(self) -> None:
        """Closes the connections, soon; to the other ends that is no sign of anything."""
        self._ending = True
        if self._is_started:
            self._ring()
        else:
            self._close_all()

    def _ring(self) -> None:
        # A bell that is full rings already, and one that is closed rings for nobody.
        with contextlib.suppress(OSError):
            self._ringer.send(b".")

    def _named(self, line: Line, address: Address | None) -> None:
        self._found.append((line, address))
        self._ring()

    # -- the thread's side ---------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._selector.register(self._bell, selectors.EVENT_READ)
            while not self._ending:
                self._look()
        except Exception:
            log.exception("the lifelines' thread failed: lost nodes are noticed by silence alone")
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for line in self._lines.values():
            self._forget(line)
        self._names.end()
        self._selector.close()
        self._bell.close()
        self._ringer.close()

    def _look(self) -> None:
        now = self._clock.monotonic()
        for line in self._lines.values():
            if not line.is_idle and now >= line.due:
                self._on_due(line, now)
        due = min((line.due for line in self._lines.values() if not line.is_idle), default=math.inf)
        limit_s = None if due == math.inf else max(0.0, due - self._clock.monotonic())
        for key, _ in self._selector.select(limit_s):
            if key.fileobj is self._bell:
                with contextlib.suppress(OSError):
                    # Ended by the kernel, at once: select has said that it is readable.
                    self._bell.recv(4096)
            elif isinstance(key.data, Line):
                self._on_ready(key.data, key.fileobj)
        self._take_wishes()

    def _take_wishes(self) -> None:
        while self._wanted:
            self._watch(*self._wanted.popleft())
        while self._found:
            line, address = self._found.popleft()
            if self._lines.get(_key_of(line.member)) is line:
                line.address = address
                line.due = self._clock.monotonic()
                if address is None:
                    self._fail(line, "")
        while self._asks:
            first = self._asks.popleft()
            for line in (*self._lines.values(),)[:first]:
                if line.is_idle:
                    self._dial(line)

    def _watch(self, members: tuple[Member, ...], presumed: bool) -> None:
        wanted = {_key_of(m): m for m in members[: most_connections()] if m.lifeline}
        for key in [key for key in self._lines if key not in wanted]:
            self._forget(self._lines.pop(key))
        old, self._lines = self._lines, {}
        for key, member in wanted.items():
            self._lines[key] = old.get(key) or _line_to(member, presumed)

    def _on_due(self, line: Line, now: float) -> None:
        if line.dialling is not None:
            # A process that is too busy to say its name, or stopped, is judged by its silence.
            self._fail(line, "" if line.connected else CLOSED)
        elif line.address is None:
            line.due = math.inf
            self._names.ask(line)
        else:
            self._dial(line)

    # -- dialling ------------------------------------------------------------------------------
    def _dial(self, line: Line) -> None:
        if line.address is None:
            return
        family, address = line.address
        line.connected, line.heard = False, b""
        line.due = self._clock.monotonic() + DIAL_LIMIT_S
        try:
            line.dialling = socket.socket(family, socket.SOCK_STREAM)
            line.dialling.setblocking(False)
            code = line.dialling.connect_ex(address)
        except OSError as error:
            code = error.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            self._fail(line, _told_by(code))
        elif line.dialling is not None:
            self._selector.register(line.dialling, selectors.EVENT_WRITE, line)

    def _on_ready(self, line: Line, ready: object) -> None:
        if ready is line.standing:
            self._hear_standing(line)
        elif ready is line.dialling and not line.connected:
            self._greet(line)
        elif ready is line.dialling:
            self._hear_name(line)

    def _greet(self, line: Line) -> None:
        assert line.dialling is not None
        code = line.dialling.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(line, _told_by(code))
            return
        # The kernel accepts for a process that listens, even while that is stopped.
        line.connected = True
        self._take_back(line)
        self._selector.modify(line.dialling, selectors.EVENT_READ, line)

    def _hear_name(self, line: Line) -> None:
        assert line.dialling is not None
        try:
            line.heard += hear(line.dialling)
        except (OSError, EOFError):
            self._fail(line, CLOSED)
            return
        name, ended, _ = line.heard.partition(NAME_END)
        if not ended and len(line.heard) <= len(line.name):
            return
        if name.decode(errors="replace") != line.name:
            self._fail(line, ANOTHER)
            return
        self._close(line.standing)
        line.standing, line.dialling = line.dialling, None
        line.stood = self.has_stood = True
        line.orderly, line.failures = False, 0
        keep_alive(line.standing)

    def _hear_standing(self, line: Line) -> None:
        assert line.standing is not None
        try:
            hear(line.standing)
            return
        except EOFError:
            line.orderly = True
        except OSError:
            line.orderly = False
        self._close(line.standing)
        line.standing = None
        if line.orderly:
            self._tell(line, CLOSED)
        if line.dialling is None:
            self._dial(line)

    def _fail(self, line: Line, why: str) -> None:
        """The node was dialled in vain, which is a sign of its end only with ``why``."""
        # A process that is just ending may still accept: its port closes after its connections.
        self._close(line.dialling)
        line.dialling = None
        pause_s = min(RETRY_MOST_S, RETRY_S * 2**line.failures)
        line.failures = min(line.failures + 1, 10)
        line.due = self._clock.monotonic() + pause_s
        if not line.stood:
            # Its name may lead elsewhere by then.
            line.address = _parse_address(line.member.addr, line.port)
        elif why in (REFUSED, ANOTHER) or (why and line.orderly):
            self._tell(line, why)

    def _tell(self, line: Line, why: str) -> None:
        if not line.told:
            self._post(events.LineClosed(line.member.seat))
        line.told = why

    def _take_back(self, line: Line) -> None:
        if line.told:
            self._post(events.LineOpen(line.member.seat))
        line.told = ""

    def _forget(self, line: Line) -> None:
        self._take_back(line)
        self._close(line.standing)
        self._close(line.dialling)
        line.standing = line.dialling = None

    def _close(self, connection: socket.socket | None) -> None:
        if connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection)
            connection.close()


class _Resolver:
    """Looks names up in a thread of its own, as a name server may be silent for long."""

    def __init__(self, tell: Callable[[Line, Address | None], None]) -> None:
        self._tell = tell
        self._asked: deque[Line] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = False

    def ask(self, line: Line) -> None:
        """Looks up where the line leads; ``tell`` is called with the answer."""
        with self._changed:
            self._asked.append(line)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lifeline-names", daemon=True)
            self._thread.start()

    def end(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._ending)
                if self._ending:
                    return
                line = self._asked.popleft()
            self._tell(line, _look_up(line.member.addr, line.port))


def _told_by(code: int) -> str:
    return REFUSED if code == errno.ECONNREFUSED else CLOSED


def _look_up(host: str, port: int) -> Address | None:
    try:
        # Ended by the resolver's own limit.
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        return None
    return family, address


def _parse_address(host: str, port: int) -> Address | None:
    """The address of a host that is given by number; None for a name."""
    try:
        is_new = ipaddress.ip_address(host).version == 6
    except ValueError:
        return None
    return (socket.AF_INET6 if is_new else socket.AF_INET), (host, port)


def _line_to(member: Member, presumed: bool) -> Line:
    port, name = parse_lifeline(member.lifeline)
    address = _parse_address(member.addr, port)
    return Line(member=member, port=port, name=name, stood=presumed, address=address)


def _key_of(member: Member) -> Key:
    return member.seat, member.addr, member.lifeline
