"""Follows the files that workers and agents write into a run folder, as whole lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from launcher.lines import Line, LineSplitter
from launcher.runs import RunFolder
from launcher.torchrun import WorkerLog, is_worker_line, split_worker_line

CHUNK_BYTES = 1 << 22
"""Of one stream at one look: a worker that writes faster than it is shown must not keep the
launcher from everything else."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """One line of a node's agent (``worker`` is None) or of one of its workers."""

    node_index: int
    worker: WorkerLog | None
    line: Line


class _Tail:
    """One file from its beginning; the open descriptor keeps what torchrun deletes meanwhile."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.is_behind = False
        """Whether there was more at the last look than it took."""
        self._stream = stream
        self._splitter = LineSplitter()

    def poll(self) -> list[Line]:
        data = self._stream.read(CHUNK_BYTES)
        self.is_behind = len(data) == CHUNK_BYTES
        return self._splitter.feed(data)

    def close(self) -> list[Line]:
        lines = []
        # Of a process that was not ended it is the rest as it is now.
        left = os.fstat(self._stream.fileno()).st_size - self._stream.tell()
        while left > 0 and (data := self._stream.read(min(left, CHUNK_BYTES))):
            lines += self._splitter.feed(data)
            left -= len(data)
        lines += self._splitter.flush()
        self._stream.close()
        return lines


class RunTails:
    """All outputs of one run; files that appear later are picked up as they come.

    ``workers_in_consoles``: the workers' lines are in the nodes' own output, and nowhere else.
    """

    def __init__(self, run: RunFolder, *, workers_in_consoles: bool = False) -> None:
        self._run = run
        self._outputs = _console_outputs if workers_in_consoles else _agent_outputs
        self._workers: dict[tuple[str, str, int], tuple[WorkerLog, _Tail]] = {}
        self._consoles: dict[tuple[int, int], _Tail] = {}

    def poll(self) -> Iterator[Output]:
        """What was written since the last call, ``CHUNK_BYTES`` of a stream at most. Does not
        wait."""
        self._open_new()
        for (node_index, _), tail in self._consoles.items():
            yield from self._outputs(node_index, tail.poll())
        for worker, tail in self._workers.values():
            yield from _worker_outputs(worker, tail.poll())

    @property
    def is_behind(self) -> bool:
        """Whether more was written than the last call took: the next one need not be waited for."""
        tails = (*self._consoles.values(), *(tail for _, tail in self._workers.values()))
        return any(tail.is_behind for tail in tails)

    def close(self) -> Iterator[Output]:
        """The rest of every stream, unfinished last lines too. The tails are done afterwards."""
        self._open_new()
        for (node_index, _), tail in self._consoles.items():
            yield from self._outputs(node_index, tail.close())
        for worker, tail in self._workers.values():
            yield from _worker_outputs(worker, tail.close())
        self._consoles, self._workers = {}, {}

    def _open_new(self) -> None:
        for node, path in self._run.consoles():
            if node not in self._consoles and (stream := _opened(path)):
                self._consoles[node] = _Tail(stream)
        for worker in self._run.worker_logs():
            for name in worker.streams:
                path = self._run.path / worker.folder / name
                # A membership restart makes the same path anew: the inode tells them apart.
                key = (worker.folder, name, _inode(path))
                if key not in self._workers and (stream := _opened(path)):
                    self._workers[key] = (worker, _Tail(stream))


def _agent_outputs(node_index: int, lines: list[Line]) -> Iterator[Output]:
    for line in lines:
        if not is_worker_line(line.text, node_index):
            yield Output(node_index=node_index, worker=None, line=line)


def _console_outputs(node_index: int, lines: list[Line]) -> Iterator[Output]:
    """Lines of a node that has no other files here, each to whom it belongs."""
    for line in lines:
        rank, text = split_worker_line(line.text, node_index)
        if rank is None:
            yield Output(node_index=node_index, worker=None, line=line)
        else:
            worker = WorkerLog(
                node_index=node_index, incarnation=0, attempt=0, folder="", rank=rank
            )
            yield Output(node_index=node_index, worker=worker, line=replace(line, text=text))


def _worker_outputs(worker: WorkerLog, lines: list[Line]) -> Iterator[Output]:
    for line in lines:
        yield Output(node_index=worker.node_index, worker=worker, line=line)


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
