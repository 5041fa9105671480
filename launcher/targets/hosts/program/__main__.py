"""One conversation with a launcher, or one node's keeper."""

from __future__ import annotations

import errno
import functools
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from launcher.targets.hosts.program import keeper, requests, revive
from launcher.targets.hosts.program.examine import Token
from launcher.targets.hosts.program.facts import Listener, read_reachable
from launcher.targets.hosts.program.frames import MAGIC, BrokenFrameError, read_frame, write_frame
from launcher.targets.hosts.program.watch import Watch

IDLE_LIMIT_S = 3600
"""A session that hears nothing for so long ends: a cut connection may never do so itself. The
others wait as long while the largest image reaches the slowest host."""
SPEC_LIMIT_S = 60
Handler = Callable[[dict[str, Any], bytes], dict[str, Any]]
HANDLERS: dict[str, Handler] = {
    name: getattr(requests, name)
    for name in (
        *("facts", "clock", "take", "release", "leases", "has", "store"),
        *("probe", "engine", "tokens"),
        *("prepare", "start", "stop", "remove", "ask", "is_asked", "runs", "image", "pull", "load"),
    )
}

LOOKING = ("facts", "leases", "runs", "watch")
"""Requests before which nodes that a reboot ended get their keepers back."""


def main(argv: list[str]) -> int:
    """Returns when the launcher closes the conversation, or the node has ended."""
    if argv[1:] == ["keep"]:
        # Handed over at once by the session that started it: one that hangs has no keeper.
        signal.alarm(SPEC_LIMIT_S)
        spec = json.loads(sys.stdin.buffer.read())
        signal.alarm(0)
        keeper.keep(spec)
        return 0
    converse(argv[0])
    return 0


def converse(program: str) -> None:
    """Answers one request after another; ``watch`` takes it over until the launcher has enough."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    stdout.write(MAGIC)
    stdout.flush()
    held = Held()
    look = functools.partial(revive.revive, Path(program).parents[1], program)
    try:
        while True:
            signal.alarm(IDLE_LIMIT_S)
            # Nothing of the launcher is in Python's own buffer, which select does not see: it
            # says one thing at a time.
            held.answer_callers()
            try:
                frame = read_frame(stdin)
            except BrokenFrameError:
                return
            if frame is None:
                return
            asked, blob = frame
            signal.alarm(int(asked.get("limit_s", IDLE_LIMIT_S)) + 60)
            if asked["op"] in LOOKING:
                look()
            if asked["op"] == "watch":
                if Watch(asked, stdout, look).run(sys.stdin.fileno()):
                    continue
                return
            if asked["op"] == "load":
                asked = {"op": "load", "chunks": read_chunks(stdin)}
            write_frame(stdout, handle({**asked, "program": program}, blob, held))
    finally:
        held.remove()


class Held:
    """What is there as long as the conversation: open ports, and tokens in folders."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._tokens: list[Token] = []

    def listen(self, asked: dict[str, Any], blob: bytes) -> dict[str, Any]:
        """Opens ``port``, or one that the kernel chooses for 0."""
        self._listeners.append(Listener(asked["token"], asked["port"]))
        return {"port": self._listeners[-1].port}

    def reach(self, asked: dict[str, Any], blob: bytes) -> dict[str, Any]:
        """Which of ``calls`` (address, port, token) are answered from here."""
        return {"reached": read_reachable(asked["calls"], asked["wait_s"], self._listeners)}

    def token(self, asked: dict[str, Any], blob: bytes) -> dict[str, Any]:
        """Leaves a file called ``name`` in ``folder``."""
        self._tokens.append(Token(asked["folder"], asked["name"]))
        return {}

    def untoken(self, asked: dict[str, Any], blob: bytes) -> dict[str, Any]:
        """Takes all tokens away, and the folders that were made for them."""
        for token in self._tokens:
            token.remove(folders=True)
        return {}

    def remove(self) -> None:
        """Takes the tokens away; a folder that was made may be somebody's by now."""
        for token in self._tokens:
            token.remove()

    def answer_callers(self) -> None:
        """Greets whoever calls until the launcher has something to say."""
        while self._listeners:
            ready = select.select([sys.stdin.fileno(), *self._listeners], [], [])[0]
            for listener in self._listeners:
                if listener in ready:
                    listener.answer()
            if sys.stdin.fileno() in ready:
                return


def read_chunks(stdin: IO[bytes]) -> Iterator[bytes]:
    """What the launcher sends until it says that this was all. Raises OSError where it is not."""
    while (frame := read_frame(stdin)) is not None:
        message, blob = frame
        signal.alarm(IDLE_LIMIT_S)
        if message["op"] == "end":
            if message["complete"]:
                return
            break
        yield blob
    raise OSError("cut off while it was sent")


def handle(asked: dict[str, Any], blob: bytes, held: Held) -> dict[str, Any]:
    """One answer; ``error`` where it cannot be done."""
    holding: dict[str, Handler] = {
        "listen": held.listen,
        "reach": held.reach,
        "token": held.token,
        "untoken": held.untoken,
    }
    try:
        return {**HANDLERS, **holding}[asked["op"]](asked, blob)
    except requests.RequestError as error:
        return {"error": str(error)}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = errno.errorcode.get(error.errno or 0, "")
        return {"error": f"{where}{error.strerror or error}", "errno": code}


if __name__ == "__main__":
    # sys.argv[0] is the folder that the loader, or the keeper's command line, names.
    sys.exit(main([os.path.abspath(sys.argv[0]), *sys.argv[1:]]))
