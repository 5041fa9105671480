"""Where the ranks stood when they were last looked at, and what their recorders say together."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.agent.worker_exit import read_error, read_tail
from launcher.contract.look import (
    FAILED_COLLECTIVES,
    STACKS,
    Frame,
    Look,
    look_dir,
    read_collectives,
    read_looks,
    read_stacks,
)
from launcher.contract.records import read_object
from launcher.contract.worker_end import COLLATERAL
from launcher.plan.torchrun import WorkerLog
from launcher.runs.folder import RunFolder
from launcher.verdict.collectives import join_recorders
from launcher.verdict.rules.standstill import Standing
from launcher.verdict.scan import LogLine

OLDER_STACKS = "stacks.txt"
"""What older agents left of a hang, by faulthandler, in the worker's folder."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.M)


class Looks:
    """The last looks at the newest nodes of a run; ``logs`` are those of its newest workers."""

    def __init__(
        self, run: RunFolder, newest: Mapping[int, int], logs: Sequence[WorkerLog]
    ) -> None:
        self._run, self._logs = run, logs
        self._looks: dict[int, Look] = {}
        self._places: dict[int, LogLine] = {}
        for node, incarnation in newest.items():
            folder = run.node_dir(node, incarnation)
            found = max(read_looks(folder), key=lambda x: (x.why == "hang", x.at), default=None)
            if found:
                self._looks[node] = found
                file = str(look_dir(folder, found.id).relative_to(run.path))
                self._places[node] = LogLine(file=file, number=0, text="", node=node)

    def standing(self) -> Iterator[Standing]:
        """Where each rank's main thread stood; by faulthandler where no look tells it."""
        looked: set[int] = set()
        for node, look in self._looks.items():
            for one in look.ranks:
                found = read_stacks(self._run.path / self._places[node].file, one.rank)
                if found and found.threads:
                    looked.add(one.rank)
                    file = f"{self._places[node].file}/{STACKS.format(rank=one.rank)}"
                    line = LogLine(file=file, number=0, text="", node=node, rank=one.rank)
                    frames, is_busy = found.threads[0].frames, one.state == "R"
                    yield Standing(line=line, frames=frames, is_busy=is_busy)
        for log in self._logs:
            rank, file = log.rank or 0, f"{log.folder}/{OLDER_STACKS}"
            frames = parse_faulthandler(read_tail(self._run.path / file))
            if frames and rank not in looked:
                line = LogLine(file=file, number=0, text="", node=log.node_index, rank=rank)
                yield Standing(line=line, frames=frames)

    def recorded(self) -> Iterator[LogLine]:
        """What is wrong between the ranks' collectives, worst first."""
        traces: dict[int, dict[str, Any]] = {}
        places: dict[int, LogLine] = {}
        at = 0.0
        for log in self._logs:
            if trace := read_object(self._run.path / log.folder / FAILED_COLLECTIVES):
                file, rank = f"{log.folder}/{FAILED_COLLECTIVES}", log.rank or 0
                place = LogLine(file=file, number=0, text="", node=log.node_index, rank=rank)
                if COLLATERAL.search(read_error(self._run.path / log.folder)):
                    _open_last(trace)
                traces[rank], places[rank] = trace, place
                with contextlib.suppress(OSError):
                    at = max(at, (self._run.path / file).stat().st_mtime)
        for node, look in self._looks.items():
            for one in look.ranks:
                trace = read_collectives(self._run.path / self._places[node].file, one.rank)
                if trace and one.rank not in traces:
                    traces[one.rank], places[one.rank] = trace, self._places[node]
        at = max((at, *(look.at for look in self._looks.values())))
        for finding in join_recorders(traces, at):
            place, rank = places[finding.ranks[0]], finding.ranks[0]
            yield replace(place, text=finding.text, rank=rank, joined=True)


def _open_last(trace: dict[str, Any]) -> None:
    """Marks the call that failed as not over, which torch counts as over once it has timed out."""
    entries = trace.get("entries")
    last = entries[-1] if isinstance(entries, list) and entries else None
    if isinstance(last, dict):
        last.update(retired=False, state="scheduled")


def parse_faulthandler(text: str) -> tuple[Frame, ...]:
    """The calls of the main thread, the newest first."""
    _, found, stack = text.partition("Current thread ")
    frames = _FRAME.finditer(stack.partition("\n\n")[0]) if found else ()
    return tuple(Frame(function=f["function"], file=f["file"], line=int(f["line"])) for f in frames)
