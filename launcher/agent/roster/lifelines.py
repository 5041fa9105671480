"""One node's connections to the nodes that it watches: they close at once when such a node ends.

A closed connection alone proves nothing, because a switch may have cut it. So the node is dialled
again, and the result is posted to the state machine, which also looks at the node's beat:

- its port refuses, or answers with the name of another process: the process is gone;
- the same process answers: all is well;
- nothing answers: it counts as gone only if the connection was closed in an orderly way, as the
  kernel does for a process that ends. The address of a killed container goes with it.

A node to which no connection ever stood is judged by its silence alone, unless others have died
just now.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from launcher.agent.roster import events
from launcher.agent.roster.answering import (
    NAME_END,
    hear_end,
    keep_alive,
    loop_of_process,
    most_connections,
    parse_lifeline,
)
from launcher.agent.roster.membership import Member

DIAL_LIMIT_S = 2.0
"""How long a node may take to accept, and again to say its name."""
RETRY_S, RETRY_MOST_S = 0.1, 10.0
"""The pause before a node is dialled again doubles between these."""
CLOSED = "its connection closed"
REFUSED = "its connections closed and its port refuses"
ANOTHER = "another process answers at its port"
log = logging.getLogger(__name__)

Key = tuple[str, str, str]


@dataclass(eq=False)
class Line:
    """The connection to one node, and what is known of the node."""

    member: Member
    host: str
    """Where it is dialled: by name, until a connection has shown the address."""
    port: int
    name: bytes
    stood: bool
    """Whether the connection ever stood, or is presumed to have: then a refusal proves the end."""
    standing: asyncio.StreamWriter | None = None
    orderly: bool = False
    """Whether the last connection that stood was closed in an orderly way."""
    told: str = ""
    """Why this node counts as gone, if that was posted."""
    failures: int = 0
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the node has to be dialled again, though a connection stood."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Lifelines:
    """Keeps the connections in the process' loop, from the first node to watch until ``end``."""

    def __init__(self, post: Callable[[events.Event], None]) -> None:
        self._post = post
        self._lines: dict[Key, Line] = {}
        self.has_stood = False
        """Whether any connection from here has ever stood."""
        self._is_open = True

    # -- any thread's side ---------------------------------------------------------------------
    def follow(self, members: tuple[Member, ...], *, presumed: bool = False) -> None:
        """Watches these members from now on, and no others; the first ones, if they are too many.

        ``presumed``: the new ones would answer if they lived, so a refusal proves their end.
        """
        if self._is_open:
            loop_of_process().call_soon_threadsafe(self._watch, members, presumed)

    def ask(self, first: int) -> None:
        """Dials the first of the members now, though their connections stand."""
        loop_of_process().call_soon_threadsafe(self._dial_anew, first)

    def why(self, seat: str) -> str:
        """Why this seat counts as gone; empty where it does not."""
        lines = (*self._lines.values(),)
        return next((line.told for line in lines if line.member.seat == seat), "")

    def end(self) -> None:
        """Has the connections closed soon; the other ends draw no conclusion from that."""
        self.follow(())
        self._is_open = False

    # -- the loop's side -----------------------------------------------------------------------
    def _watch(self, members: tuple[Member, ...], presumed: bool) -> None:
        wanted = {
            (m.seat, m.addr, m.lifeline): m for m in members[: most_connections()] if m.lifeline
        }
        for key in [key for key in self._lines if key not in wanted]:
            self._forget(self._lines.pop(key))
        old, lines = self._lines, dict[Key, Line]()
        for key, member in wanted.items():
            lines[key] = old.get(key) or self._begin(member, presumed)
        self._lines = lines

    def _dial_anew(self, first: int) -> None:
        for line in (*self._lines.values(),)[:first]:
            if line.standing is not None:
                line.due.set()

    def _begin(self, member: Member, presumed: bool) -> Line:
        port, name = parse_lifeline(member.lifeline)
        told = name.encode() + NAME_END
        line = Line(member=member, host=member.addr, port=port, name=told, stood=presumed)
        _run(line, self._keep(line))
        return line

    async def _keep(self, line: Line) -> None:
        """Dials until a connection stands, and again when it has ended, or is in doubt."""
        try:
            while True:
                line.due.clear()
                await self._dial(line)
                if line.standing is None:
                    await asyncio.sleep(min(RETRY_MOST_S, RETRY_S * 2 ** (line.failures - 1)))
                else:
                    # Ended by the connection's end, by a doubt about it, or by the line's task.
                    await line.due.wait()
        except Exception:
            log.exception("a lifeline failed: that node's loss is noticed by its silence alone")

    async def _dial(self, line: Line) -> None:
        try:
            opened = asyncio.open_connection(line.host, line.port)
            reader, writer = await asyncio.wait_for(opened, DIAL_LIMIT_S)
        except ConnectionRefusedError:
            self._fail(line, REFUSED)
            return
        except (socket.gaierror, UnicodeError):
            self._fail(line, "")
            return
        except OSError:
            self._fail(line, CLOSED)
            return
        # The process is there, if maybe stopped: the kernel accepts for it as long as it listens.
        self._take_back(line)
        why = ANOTHER
        try:
            heard = await asyncio.wait_for(reader.readexactly(len(line.name)), DIAL_LIMIT_S)
            if heard == line.name:
                self._stand(line, reader, writer)
                return
        except TimeoutError:
            # A process that is too busy to say its name, or stopped, is judged by its silence.
            why = ""
        except (OSError, EOFError):
            # A process that is just ending may still accept: its port closes after its connections.
            why = CLOSED
        finally:
            if line.standing is not writer:
                writer.close()
        self._fail(line, why)

    def _stand(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if line.standing is not None:
            line.standing.close()
        line.standing = writer
        line.stood = self.has_stood = True
        line.orderly, line.failures = False, 0
        # The host's name may lead elsewhere later.
        line.host = writer.get_extra_info("peername")[0]
        keep_alive(writer)
        _run(line, self._hear_end(line, reader, writer))

    async def _hear_end(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        orderly = await hear_end(reader)
        writer.close()
        if line.standing is writer:
            line.standing, line.orderly = None, orderly
            if orderly:
                self._tell(line, CLOSED)
            line.due.set()

    def _fail(self, line: Line, why: str) -> None:
        """Notes that the node was dialled in vain: a sign of its end only with ``why``."""
        line.failures = min(line.failures + 1, 10)
        if line.stood and (why in (REFUSED, ANOTHER) or (why and line.orderly)):
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
        for task in line.tasks:
            task.cancel()
        if line.standing is not None:
            line.standing.close()
            line.standing = None


def _run(line: Line, work: Coroutine[Any, Any, None]) -> None:
    """Runs ``work``. Keeps its task alive until the line is forgotten, as asyncio does not."""
    task = asyncio.get_running_loop().create_task(work)
    line.tasks.add(task)
    task.add_done_callback(line.tasks.discard)
