"""Follows the files that workers and agents write into a run folder, as whole lines, in turns;
raises the limit of open files where it must.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.follow.lines import BlockSplitter, LineBlock
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.torchrun import WorkerLog, split_console
from launcher.runs.folder import RunFolder
from launcher.runs.heals import HEALED, JOINED
from launcher.runs.ledger import (
    agent_ledger,
    moments_file,
    read_agents,
    read_heals,
    read_moments,
    tell_restarts,
)

CHUNK_BYTES = 1 << 20
CHUNKS_A_TURN = 16
"""How many chunks of one file are read before the follower looks at the run again."""
MOST_FILES = 1 << 16
"""The most files that this process has open, if the machine allows so many."""
SPARE_FILES = 128
"""How many of these files are kept free for what else a launcher opens."""

Stream = Literal["stdout", "stderr"]
HasRoom = Callable[[Stream], bool]
"""Whether more of a stream can be shown now; if not, the rest stays in its file."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a node's agent (``worker`` is None) or one of its workers wrote to ``stream``."""

    node_index: int
    worker: WorkerLog | None
    stream: Stream
    block: LineBlock


class _Tail:
    """Reads one file from its beginning. Keeps it open, as torchrun may delete it."""

    def __init__(
        self,
        path: Path,
        node_index: int,
        worker: WorkerLog | None,
        stream: Stream,
        splitter: BlockSplitter,
    ) -> None:
        self.node_index, self.worker, self.stream = node_index, worker, stream
        self._file = path.open("rb")
        self._splitter = splitter

    def poll(self, has_room: HasRoom) -> Iterator[LineBlock]:
        for _ in range(CHUNKS_A_TURN):
            if not has_room(self.stream) or not (data := self._file.read(CHUNK_BYTES)):
                return
            yield from self._splitter.feed(data)

    def close(self, has_room: HasRoom) -> Iterator[LineBlock]:
        # A process may still be writing: read only up to the present size.
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        while has_room(self.stream):
            data = self._file.read(min(left, CHUNK_BYTES)) if left > 0 else b""
            left -= len(data)
            yield from self._splitter.feed(data) if data else self._splitter.flush()
            if not data:
                break
        self._file.close()


def file_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> int:
    """Lets this process open more files, up to the hard limit. Returns how many it may open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if most > file_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return file_limit()


_Key = tuple[Path, int]


def _always(stream: Stream) -> bool:
    return True


class LedgerTails:
    """Finds in the ledgers how the training went on: after failures and losses, with newcomers."""

    def __init__(self, run: RunFolder) -> None:
        self._run, self._written_bytes = run, 0
        self._returned = set[object]()

    def poll(self, plan: LaunchPlan) -> Iterator[str]:
        """Restarts and heals that no earlier call has told, in words. Does not wait."""
        paths = [agent_ledger(self._run, *node) for node in self._run.incarnations()]
        paths.append(moments_file(self._run))
        written_bytes = sum(path.stat().st_size for path in paths if path.exists())
        if written_bytes == self._written_bytes:
            return
        self._written_bytes = written_bytes
        told = tell_restarts((*read_agents(self._run), *read_moments(self._run)))
        for heal in read_heals(self._run, plan):
            # Each node records the same heal, one after the other.
            text = f"{'' if heal.cause == JOINED else HEALED}{heal}"
            told.setdefault((heal.step, heal.num_nodes), text)
        for key, text in told.items():
            if key not in self._returned:
                self._returned.add(key)
                yield text


class RunTails:
    """Reads all outputs of one run, also from files that appear later.

    ``workers_in_consoles``: workers write both streams into their node's output, and nowhere else.
    ``agents``: also the agents' own lines. For the workers' stdout, ``keeps_returns`` and
    ``copies`` are those of ``BlockSplitter``.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        workers_in_consoles: bool = False,
        agents: bool = True,
        keeps_returns: bool = False,
        copies: bool = False,
    ) -> None:
        self._run = run
        self._in_consoles, self._agents = workers_in_consoles, agents
        self._keeps_returns, self._copies = keeps_returns, copies
        self._tails: dict[_Key, _Tail] = {}
        self._done: set[_Key] = set()
        self._most = max(1, file_limit() - SPARE_FILES)
        self._cut: dict[int, int | None] = {}
        """By node: who wrote the line of its console that was cut."""

    def poll(self, has_room: HasRoom = _always) -> Iterator[Output]:
        """What was written since the last call, as far as there is room. Does not wait."""
        return self._outputs(lambda tail: tail.poll(has_room))

    def close(self, has_room: HasRoom = _always) -> Iterator[Output]:
        """The rest of each stream, with its unfinished last line. Closes all files.

        ``has_room`` may wait. Once it returns False for a stream, that stream is not read further.
        """
        is_left = True
        while is_left:
            yield from self._outputs(lambda tail: tail.close(has_room))
            # Next come the files that the limit of open files has left out.
            is_left = len(self._tails) >= self._most
            self._done.update(self._tails)
            self._tails = {}

    def _outputs(self, read_blocks: Callable[[_Tail], Iterator[LineBlock]]) -> Iterator[Output]:
        workers = self._run.worker_logs()
        self._open_new(workers)
        # The agents' own lines first.
        for tail in sorted(self._tails.values(), key=lambda tail: tail.worker is not None):
            yield from self._outputs_of(tail, read_blocks(tail))

    def _outputs_of(self, tail: _Tail, blocks: Iterator[LineBlock]) -> Iterator[Output]:
        index, worker = tail.node_index, tail.worker
        for block in blocks:
            if worker is None:
                yield from self._console_outputs(index, block)
            else:
                yield Output(node_index=index, worker=worker, stream=tail.stream, block=block)

    def _open_new(self, workers: tuple[WorkerLog, ...]) -> None:
        if self._agents or self._in_consoles:
            for (node_index, _), path in self._run.consoles():
                self._open(path, node_index, None, "stdout" if self._in_consoles else "stderr")
        for worker in workers:
            for name, stream in zip(worker.streams, _STREAMS, strict=True):
                path = self._run.path / worker.folder / name
                self._open(path, worker.node_index, worker, stream)

    def _open(self, path: Path, node_index: int, worker: WorkerLog | None, stream: Stream) -> None:
        # A file that is not there yet is opened later.
        with contextlib.suppress(OSError):
            # A membership restart makes a new file of the same path: the inodes differ.
            key = (path, path.stat().st_ino if worker else 0)
            if key in self._tails or key in self._done:
                return
            if len(self._tails) >= self._most:
                # Raise the limit only now: every process that this one starts inherits it.
                self._most = max(self._most, raise_file_limit() - SPARE_FILES)
            if len(self._tails) < self._most:
                # The agent turns progress bars into lines where its console is all there is.
                splitter = BlockSplitter(keeps_returns=self._in_consoles and worker is None)
                if worker is not None and stream == "stdout":
                    splitter = BlockSplitter(keeps_returns=self._keeps_returns, copies=self._copies)
                self._tails[key] = _Tail(path, node_index, worker, stream, splitter)

    def _console_outputs(self, node_index: int, block: LineBlock) -> Iterator[Output]:
        """Splits a node's own output into lines of its agent and of its workers."""
        data = block.data + b"\n" if block.is_progress else block.data
        parts = list[tuple[int | None, bytes]]()
        if node_index in self._cut:  # the rest of a line has no prefix
            end = data.index(b"\n") + 1
            parts, data = [(self._cut.pop(node_index), data[:end])], data[end:]
        parts += split_console(data, node_index)
        for rank, text in parts:
            if block.is_cut:  # then it is a piece of one line
                self._cut[node_index] = rank
            part = LineBlock(data=text, is_cut=block.is_cut)
            if rank is None and self._agents:
                yield Output(node_index=node_index, worker=None, stream="stderr", block=part)
            elif rank is not None and self._in_consoles:
                worker = WorkerLog(
                    node_index=node_index, incarnation=0, attempt=0, folder="", rank=rank
                )
                yield Output(node_index=node_index, worker=worker, stream="stdout", block=part)


_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
"""In the order of ``WorkerLog.streams``."""
