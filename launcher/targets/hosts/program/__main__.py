"""On a host: one conversation with a launcher, or one node's keeper; refuses what is meant for
another machine.

Each conversation starts a Python, so what only some requests need is imported when they come.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from signal import alarm

from launcher.contract import protocol
from launcher.targets.hosts.program import messages
from launcher.targets.hosts.program.messages import IDLE_LIMIT_S, Answered, Refusal, RequestError
from launcher.targets.hosts.program.wire import (
    MAGIC,
    TYPE_CHECKING,
    Record,
    parse_json,
    read_frame,
    write_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any


SPEC_LIMIT_S = 60
HELD_LIMIT_S = 60.0
"""How long a lease is held for a launcher that is not heard, as after a loss of power."""
HANDLERS = {
    messages.HasCode: "code_store.has_code",
    messages.StoreCode: "code_store.store_code",
    messages.PrepareRun: "code_store.prepare_run",
    messages.ReadHost: "facts.read_host",
    messages.RunProbe: "facts.run_probe",
    messages.Listen: "reach.listen",
    messages.CallHosts: "reach.call_hosts",
    messages.FindTokens: "reach.find_tokens",
    messages.StopNodes: "requests.stop_nodes",
    messages.RemoveRun: "requests.remove_run",
    messages.FindImage: "requests.find_image",
    messages.AskLauncher: "requests.ask_launcher",
    messages.ListRuns: "requests.list_runs",
    messages.FindLeft: "requests.find_left",
    messages.TakeLook: "requests.take_look",
    messages.ReadNewest: "requests.read_newest",
}
"""The function for each request that ``HostConversation`` does not answer itself."""
BRING_BYTES = (messages.StoreCode, messages.PrepareRun, messages.RunProbe)
"""Requests whose function is also given the bytes that came along."""


def main(argv: list[str]) -> int:
    """Returns when the launcher closes the conversation, or the node has ended."""
    if argv[1:2] == ["keep"]:
        # The session that started this sends the spec at once, unless it hangs.
        alarm(SPEC_LIMIT_S)
        keeper = _module("keeper")
        spec = parse_json(sys.stdin.buffer.read())
        alarm(0)
        keeper.Keeper(spec, [int(word) for word in argv[2:]]).run()
        return 0
    converse(argv[0])
    return 0


def _module(name: str) -> Any:
    return import_module(f".{name}", messages.__package__)


def converse(program: str) -> None:
    """Answers one request after another; a watch goes on until the launcher ends it."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    stdout.write(MAGIC)
    stdout.flush()
    conversation = HostConversation(program)
    try:
        while True:
            alarm(int(IDLE_LIMIT_S))
            try:
                frame = read_frame(stdin)
            except ValueError:
                return
            if frame is None:
                return
            asked, blob = frame
            assert isinstance(asked, messages.HostRequest), type(asked).__name__
            alarm(int(asked.limit_s) + 60)
            if (refusal := refuse_as_another(asked.machine)) is not None:
                write_frame(stdout, refusal)
            elif not isinstance(asked, messages.WatchRun):
                write_frame(stdout, conversation.answer(asked, blob))
            # Python's own buffer, which select does not see, holds at most beats: others follow.
            elif not _module("watch").Watch(asked, stdout).run(stdin.fileno()):
                return
    finally:
        conversation.end()


def refuse_as_another(wanted: str) -> Refusal | None:
    """The refusal of a machine that is not the ``wanted`` one; None if it is, or any will do."""
    if not wanted:
        return None
    from launcher.contract.process_stat import name_machine

    if (own := name_machine()) == wanted:
        return None
    return Refusal(
        error=f"it is another machine ({own}) than the run's ({wanted})",
        fix="correct the address that its name leads to: ~/.ssh/config, /etc/hosts",
    )


class HostConversation:
    """Answers requests. Tokens in folders and leases last as long as it does."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._tokens: list[Path] = []
        self._held: list[int] = []
        self.handlers: dict[type[Record], Callable[[Any], object]] = {
            messages.ReadClock: lambda asked: time.time(),
            messages.TakeLease: self._take,
            messages.StartNode: self._start,
            messages.LeaveToken: self._leave,
        }

    def answer(self, asked: Record, blob: bytes) -> Record:
        """The answer to one request, or a refusal."""
        kind = type(asked)
        try:
            told: object
            if kind in self.handlers:
                told = self.handlers[kind](asked)
            else:
                module, _, name = HANDLERS[kind].partition(".")
                words = (asked, blob) if kind in BRING_BYTES else (asked,)
                told = getattr(_module(module), name)(*words)
        except RequestError as error:
            return Refusal(error=str(error))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return Refusal(error=f"{where}{error.strerror or error}")
        return told if isinstance(told, Record) else Answered(value=told)

    def end(self) -> None:
        """Removes tokens, and releases a lease that no keeper got."""
        for token in self._tokens:
            with suppress(OSError):
                token.unlink()
        self._release()

    def _take(self, asked: messages.TakeLease) -> object:
        leases, lease = _module("leases"), asked.lease
        self._release()
        # An earlier incarnation of the node may still run.
        end_nodes = _module("requests").end_nodes
        end_nodes(lease.run_id, lease.node_index, 0.0, in_containers=asked.containers)
        try:
            self._held = leases.take(asked.lease_dir, lease, asked.slots_limit)
        except leases.HeldError as error:
            return error.leases
        self._end_unheard(asked.run_dir, lease.node_index)
        return []

    def _end_unheard(self, run_dir: str, node: int) -> None:
        """Ends this process if the launcher falls silent while its lease is held here.

        Sending code may take long, and sshd notices only late that the launcher's machine is gone.
        """
        state = _module("node_state")
        run = import_module("pathlib").Path(run_dir)
        folder = run / protocol.NODES_DIR / str(node)
        folder.mkdir(parents=True, exist_ok=True)
        state.mark_followed(run, node)

        def look() -> None:
            while self._held:
                if not state.is_node_followed(folder, HELD_LIMIT_S):
                    os._exit(1)
                time.sleep(1.0)

        import_module("threading").Thread(target=look, daemon=True).start()

    def _release(self) -> None:
        if self._held:
            _module("leases").release(self._held)
        self._held = []

    def _start(self, asked: messages.StartNode) -> None:
        _module("processes").start_keeper(asked.node, self._program, self._held)
        for file in self._held:
            os.close(file)
        self._held = []

    def _leave(self, asked: messages.LeaveToken) -> None:
        self._tokens.append(_module("reach").leave_token(asked))


if __name__ == "__main__":
    # sys.argv[0] is the folder that the loader, or the keeper's command line, names.
    sys.exit(main([os.path.abspath(sys.argv[0]), *sys.argv[1:]]))
