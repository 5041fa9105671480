"""One conversation with a launcher, or one node's keeper.

What only some requests need is imported when they come: each conversation starts a Python.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from launcher.targets.hosts.program import code_store, messages
from launcher.targets.hosts.program.messages import (
    IDLE_LIMIT_S,
    Answered,
    Completed,
    Refusal,
    RequestError,
)
from launcher.targets.hosts.program.records import (
    MAGIC,
    TYPE_CHECKING,
    Record,
    read_frame,
    write_frame,
)

try:
    # What ``signal`` is made of, without its enums.
    from _signal import alarm  # type: ignore[import-not-found]
except ImportError:
    from signal import alarm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO, Any

    from launcher.targets.hosts.program.reach import Listener, Token

    Handlers = dict[type[Record], Callable[[Any], object]]

SPEC_LIMIT_S = 60


def main(argv: list[str]) -> int:
    """Returns when the launcher closes the conversation, or the node has ended."""
    if argv[1:] == ["keep"]:
        # The session that started this sends the spec at once, unless it hangs.
        alarm(SPEC_LIMIT_S)
        import json

        from launcher.targets.hosts.program import keeper

        spec = messages.KeeperSpec.from_json(json.loads(sys.stdin.buffer.read()))
        alarm(0)
        keeper.keep(spec)
        return 0
    converse(argv[0])
    return 0


def converse(program: str) -> None:
    """Answers one request after another; a watch goes on until the launcher ends it."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    stdout.write(MAGIC)
    stdout.flush()
    state = ConversationState(program)
    try:
        while True:
            alarm(int(IDLE_LIMIT_S))
            # The launcher sends one message at a time, so Python's own buffer, which select does
            # not see, is empty here.
            state.answer_callers()
            try:
                frame = read_frame(stdin)
            except ValueError:
                return
            if frame is None:
                return
            asked, blob = frame
            assert isinstance(asked, messages.HostRequest), type(asked).__name__
            alarm(int(asked.limit_s) + 60)
            if not isinstance(asked, messages.WatchRun):
                write_frame(stdout, answer(asked, blob, state, stdin))
            elif not watch(asked, stdout):
                return
    finally:
        state.remove_tokens()


def watch(asked: messages.WatchRun, stdout: IO[bytes]) -> bool:
    """Blocks until the launcher ends the watch (True), or the connection (False)."""
    from launcher.targets.hosts.program.watch import Watch

    return Watch(asked, stdout).run(sys.stdin.fileno())


class ConversationState:
    """What lasts as long as a conversation: open ports, and tokens in folders."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._listeners: list[Listener] = []
        self._tokens: list[Token] = []
        self.handlers: Handlers = {
            messages.StartNode: self._start,
            messages.Listen: self._listen,
            messages.CallHosts: self._call,
            messages.LeaveToken: self._leave,
            messages.RemoveTokens: lambda asked: self.remove_tokens(folders=True),
        }

    def _start(self, asked: messages.StartNode) -> Completed:
        from launcher.targets.hosts.program import keeper, requests

        spec = asked.node
        # An earlier incarnation of the node may still run.
        in_containers = bool(spec.container)
        requests.end_nodes(spec.run_id, (spec.node_index,), 0.0, in_containers=in_containers)
        keeper.start(spec, self._program)
        return Completed()

    def _listen(self, asked: messages.Listen) -> int:
        from launcher.targets.hosts.program.reach import Listener

        self._listeners.append(Listener(asked.token, asked.port))
        return self._listeners[-1].port

    def _call(self, asked: messages.CallHosts) -> list[int]:
        from launcher.targets.hosts.program.reach import read_reachable

        return read_reachable(asked.calls, asked.wait_s, self._listeners)

    def _leave(self, asked: messages.LeaveToken) -> Completed:
        from launcher.targets.hosts.program.reach import Token

        self._tokens.append(Token(asked.folder, asked.name))
        return Completed()

    def remove_tokens(self, *, folders: bool = False) -> Completed:
        """Removes the tokens, and the ``folders`` that were made for them if nobody uses them."""
        for token in self._tokens:
            token.remove(folders=folders)
        return Completed()

    def answer_callers(self) -> None:
        """Greets callers until the launcher sends something."""
        if not self._listeners:
            return
        import select

        stdin = sys.stdin.fileno()
        while True:
            # Ended by the launcher, whose end closes stdin.
            ready = select.select([stdin, *self._listeners], [], [])[0]
            for listener in self._listeners:
                if listener in ready:
                    listener.answer()
            if stdin in ready:
                return


def read_chunks(stdin: IO[bytes]) -> Iterator[bytes]:
    """The parts of an image. Raises ``OSError`` where it is cut off."""
    while (frame := read_frame(stdin)) is not None:
        message, blob = frame
        alarm(int(IDLE_LIMIT_S))
        if isinstance(message, messages.ImageEnd):
            if message.complete:
                return
            break
        yield blob
    raise OSError("cut off while it was sent")


def run_probe(asked: messages.RunProbe, program: bytes) -> messages.ProbeResult:
    from launcher.targets.hosts.program import facts

    return facts.run_program(asked, program.decode())


HANDLERS: Handlers = {
    messages.ReadClock: lambda asked: time.time(),
    messages.HasCode: code_store.has_code,
}
"""Requests that need no other module."""
HANDLERS_OF_BYTES: dict[type[Record], Callable[[Any, bytes], object]] = {
    messages.RunProbe: run_probe,
    messages.StoreCode: code_store.store_code,
    messages.PrepareRun: code_store.prepare_run,
}
"""Requests that bring bytes along."""


def handlers_for(kind: type[Record]) -> Handlers:
    """The table that has a request, with the modules that it needs."""
    if kind in HANDLERS:
        return HANDLERS
    if kind in (messages.ReadHost, messages.ReadEngine):
        from launcher.targets.hosts.program import facts

        return {messages.ReadHost: facts.read_host, messages.ReadEngine: facts.read_engine}
    if kind is messages.FindTokens:
        from launcher.targets.hosts.program import reach

        return {messages.FindTokens: reach.find_tokens}
    from launcher.targets.hosts.program import requests

    return requests.HANDLERS


def answer(asked: Record, blob: bytes, state: ConversationState, stdin: IO[bytes]) -> Record:
    """The answer to one request, or why there is none."""
    kind = type(asked)
    told: object
    try:
        if kind is messages.LoadImage:
            from launcher.targets.hosts.program import requests

            told = requests.load_image(read_chunks(stdin))
        elif kind in HANDLERS_OF_BYTES:
            told = HANDLERS_OF_BYTES[kind](asked, blob)
        elif kind in state.handlers:
            told = state.handlers[kind](asked)
        else:
            told = handlers_for(kind)[kind](asked)
    except RequestError as error:
        return Refusal(error=str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = errno.errorcode.get(error.errno or 0, "")
        return Refusal(error=f"{where}{error.strerror or error}", errno=code)
    return told if isinstance(told, Record) else Answered(value=told)


if __name__ == "__main__":
    # sys.argv[0] is the folder that the loader, or the keeper's command line, names.
    sys.exit(main([os.path.abspath(sys.argv[0]), *sys.argv[1:]]))
