"""One conversation with a launcher, or one node's keeper."""

from __future__ import annotations

import errno
import functools
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from launcher.targets.hosts.program import keeper, messages, requests
from launcher.targets.hosts.program.messages import IDLE_LIMIT_S, Answered, Completed, Refusal
from launcher.targets.hosts.program.reach import Listener, Token, read_reachable
from launcher.targets.hosts.program.records import MAGIC, Record, read_frame, write_frame
from launcher.targets.hosts.program.watch import Watch

SPEC_LIMIT_S = 60
SHOWS_NODES = (messages.ReadHost, messages.ListRuns, messages.WatchRun)
"""Before these requests, nodes that a reboot ended get their keepers back."""


def main(argv: list[str]) -> int:
    """Returns when the launcher closes the conversation, or the node has ended."""
    if argv[1:] == ["keep"]:
        # The session that started this sends the spec at once, unless it hangs.
        signal.alarm(SPEC_LIMIT_S)
        spec = messages.KeeperSpec.from_json(json.loads(sys.stdin.buffer.read()))
        signal.alarm(0)
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
    revive = functools.partial(keeper.revive, Path(program).parents[1], program)
    try:
        while True:
            signal.alarm(int(IDLE_LIMIT_S))
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
            signal.alarm(int(asked.limit_s) + 60)
            if isinstance(asked, SHOWS_NODES):
                revive()
            if not isinstance(asked, messages.WatchRun):
                write_frame(stdout, answer(asked, blob, state, stdin))
            elif not Watch(asked, stdout, revive).run(sys.stdin.fileno()):
                return
    finally:
        state.remove_tokens()


class ConversationState:
    """What lasts as long as a conversation: open ports, and tokens in folders."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._listeners: list[Listener] = []
        self._tokens: list[Token] = []
        self.handlers: requests.Handlers = {
            messages.StartNode: self._start,
            messages.Listen: self._listen,
            messages.CallHosts: self._call,
            messages.LeaveToken: self._leave,
            messages.RemoveTokens: lambda asked: self.remove_tokens(folders=True),
        }

    def _start(self, asked: messages.StartNode) -> Completed:
        spec = asked.node
        # An earlier incarnation of the node may still run.
        in_containers = bool(spec.container)
        requests.end_nodes(spec.run_id, (spec.node_index,), 0.0, in_containers=in_containers)
        keeper.start(spec, self._program)
        return Completed()

    def _listen(self, asked: messages.Listen) -> int:
        self._listeners.append(Listener(asked.token, asked.port))
        return self._listeners[-1].port

    def _call(self, asked: messages.CallHosts) -> list[int]:
        return read_reachable(asked.calls, asked.wait_s, self._listeners)

    def _leave(self, asked: messages.LeaveToken) -> Completed:
        self._tokens.append(Token(asked.folder, asked.name))
        return Completed()

    def remove_tokens(self, *, folders: bool = False) -> Completed:
        """Removes the tokens, and the ``folders`` that were made for them if nobody uses them."""
        for token in self._tokens:
            token.remove(folders=folders)
        return Completed()

    def answer_callers(self) -> None:
        """Greets callers until the launcher sends something."""
        stdin = sys.stdin.fileno()
        while self._listeners:
            ready = select.select([stdin, *self._listeners], [], [])[0]
            for listener in (item for item in ready if isinstance(item, Listener)):
                listener.answer()
            if stdin in ready:
                return


def read_chunks(stdin: IO[bytes]) -> Iterator[bytes]:
    """The parts of an image. Raises ``OSError`` where it is cut off."""
    while (frame := read_frame(stdin)) is not None:
        message, blob = frame
        signal.alarm(int(IDLE_LIMIT_S))
        if isinstance(message, messages.ImageEnd):
            if message.complete:
                return
            break
        yield blob
    raise OSError("cut off while it was sent")


def answer(asked: Record, blob: bytes, state: ConversationState, stdin: IO[bytes]) -> Record:
    """The answer to one request, or why there is none."""
    kind = type(asked)
    told: object
    try:
        if kind is messages.LoadImage:
            told = requests.load_image(read_chunks(stdin))
        elif kind in requests.HANDLERS_OF_BYTES:
            told = requests.HANDLERS_OF_BYTES[kind](asked, blob)
        else:
            told = {**requests.HANDLERS, **state.handlers}[kind](asked)
    except requests.RequestError as error:
        return Refusal(error=str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = errno.errorcode.get(error.errno or 0, "")
        return Refusal(error=f"{where}{error.strerror or error}", errno=code)
    return told if isinstance(told, Record) else Answered(value=told)


if __name__ == "__main__":
    # sys.argv[0] is the folder that the loader, or the keeper's command line, names.
    sys.exit(main([os.path.abspath(sys.argv[0]), *sys.argv[1:]]))
