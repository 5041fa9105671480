"""Follows the files that workers and agents write into a run folder, as whole lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from launcher.follow.lines import BlockSplitter, LineBlock
from launcher.plan.torchrun import WorkerLog, split_console
from launcher.runs.folder import RunFolder

CHUNK_BYTES = 1 << 20
CHUNKS_A_TURN = 16
"""For one file: the follower has more to do than to read."""

Stream = Literal["stdout", "stderr"]
HasRoom = Callable[[Stream], bool]
"""Whether more of a stream can be shown; the rest stays in its file."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a node's agent (``worker`` is None) or one of its workers wrote, on which stream."""

    node_index: int
    worker: WorkerLog | None
    stream: Stream
    block: LineBlock


class _Tail:
    """One file from its beginning; the open descriptor keeps what torchrun deletes meanwhile."""

    def __init__(self, file: IO[bytes], stream: Stream, *, keeps_returns: bool) -> None:
        self.stream = stream
        self._file = file
        self._splitter = BlockSplitter(keeps_returns=keeps_returns)

    def poll(self, has_room: HasRoom) -> Iterator[LineBlock]:
        for _ in range(CHUNKS_A_TURN):
            if not has_room(self.stream) or not (data := self._file.read(CHUNK_BYTES)):
                return
            yield from self._splitter.feed(data)

    def close(self, has_room: HasRoom) -> Iterator[LineBlock]:
        # A process that still runs may write on: read up to the present size.
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        while has_room(self.stream):
            data = self._file.read(min(left, CHUNK_BYTES)) if left > 0 else b""
            left -= len(data)
            yield from self._splitter.feed(data) if data else self._splitter.flush()
            if not data:
                break
        self._file.close()


def _always(stream: Stream) -> bool:
    return True


class RunTails:
    """All outputs of one run; files that appear later are picked up as they come.

    ``workers_in_consoles``: the workers' lines are in the nodes' own output, and nowhere else,
    both streams in one. ``agents`` False leaves the nodes' own lines out. ``keeps_returns``: as
    ``BlockSplitter`` has it, for the workers' stdout.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        workers_in_consoles: bool = False,
        agents: bool = True,
        keeps_returns: bool = False,
    ) -> None:
        self._run = run
        self._in_consoles, self._agents = workers_in_consoles, agents
        self._keeps_returns = keeps_returns
        self._workers: dict[tuple[str, str, int], tuple[WorkerLog, _Tail]] = {}
        self._consoles: dict[tuple[int, int], _Tail] = {}

    def poll(self, has_room: HasRoom = _always) -> Iterator[Output]:
        """What was written since the last call, as far as there is room. Does not wait."""
        self._open_new()
        for (node_index, _), tail in self._consoles.items():
            for block in tail.poll(has_room):
                yield from self._console_outputs(node_index, block)
        for worker, tail in self._workers.values():
            for block in tail.poll(has_room):
                yield _worker_output(worker, tail, block)

    def close(self, has_room: HasRoom = _always) -> Iterator[Output]:
        """The rest of every stream, unfinished last lines too. The tails are done afterwards.

        ``has_room`` may wait; a stream for which it gives up stays unread from there on.
        """
        self._open_new()
        for (node_index, _), tail in self._consoles.items():
            for block in tail.close(has_room):
                yield from self._console_outputs(node_index, block)
        for worker, tail in self._workers.values():
            for block in tail.close(has_room):
                yield _worker_output(worker, tail, block)
        self._consoles, self._workers = {}, {}

    def _open_new(self) -> None:
        if self._agents or self._in_consoles:
            for node, path in self._run.consoles():
                if node not in self._consoles and (file := _opened(path)):
                    stream: Stream = "stdout" if self._in_consoles else "stderr"
                    self._consoles[node] = _Tail(file, stream, keeps_returns=False)
        for worker in self._run.worker_logs():
            for name, stream in zip(worker.streams, _STREAMS, strict=True):
                path = self._run.path / worker.folder / name
                # A membership restart makes the same path anew: the inode tells them apart.
                key = (worker.folder, name, _inode(path))
                if key not in self._workers and (file := _opened(path)):
                    keeps_returns = self._keeps_returns and stream == "stdout"
                    tail = _Tail(file, stream, keeps_returns=keeps_returns)
                    self._workers[key] = (worker, tail)

    def _console_outputs(self, node_index: int, block: LineBlock) -> Iterator[Output]:
        """Lines of a node's own output, each to whom it belongs."""
        data = block.data + b"\n" if block.is_progress else block.data
        for rank, text in split_console(data, node_index):
            own = LineBlock(data=text)
            if rank is None and self._agents:
                yield Output(node_index=node_index, worker=None, stream="stderr", block=own)
            elif rank is not None and self._in_consoles:
                worker = WorkerLog(
                    node_index=node_index, incarnation=0, attempt=0, folder="", rank=rank
                )
                yield Output(node_index=node_index, worker=worker, stream="stdout", block=own)


_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
"""In the order of ``WorkerLog.streams``."""


def _worker_output(worker: WorkerLog, tail: _Tail, block: LineBlock) -> Output:
    return Output(node_index=worker.node_index, worker=worker, stream=tail.stream, block=block)


def _opened(path: Path) -> IO[bytes] | None:
    try:
        return path.open("rb")
    except OSError:
        return None


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
