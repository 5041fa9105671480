"""Where each rank was at the last look, and what all flight recorders say together."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.agent.engine.monitoring.stacks import parse_faulthandler
from launcher.agent.stopping import SILENT_S
from launcher.agent.worker_exit import read_error, read_tail, read_traceback
from launcher.contract.causes import Cause
from launcher.contract.ending import COLLATERAL, WorkerEnd
from launcher.contract.protocol import ERROR_FILE, STDERR_FILE
from launcher.contract.records import read_object
from launcher.contract.reports.look import (
    CRASH,
    CRASHED_STACKS,
    FAILED_COLLECTIVES,
    STACKS,
    Frame,
    Look,
    RankStacks,
    last_collective_at,
    look_dir,
    parse_printed_looks,
    read_collectives,
    read_look,
    read_looks,
    read_stacks,
)
from launcher.plan.torchrun import WorkerLog
from launcher.runs.folder import RunFolder
from launcher.verdict.collectives import join_recorders
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.standstill import STANDS_S, Standing, own_place

MOST_PRINTED_BYTES = 1 << 20
"""How much of the end of a console is searched for the stacks that agents print before a stop."""


@dataclass(frozen=True, kw_only=True)
class RankSnapshots:
    """What the last looks recorded of the workers: looks and their folders by node, stacks and
    collectives by rank."""

    folders: dict[int, Path]
    looks: dict[int, Look] = field(default_factory=dict)
    stacks: dict[int, RankStacks] = field(default_factory=dict)
    traces: dict[int, dict[str, Any]] = field(default_factory=dict)


def find_last_looks(run: RunFolder, incarnations: Iterable[tuple[int, int]]) -> dict[int, Path]:
    """The folder of each node's last look; one that found a hang is preferred."""
    last: dict[int, tuple[bool, float, Path]] = {}
    for node, incarnation in incarnations:
        node_dir = run.node_dir(node, incarnation)
        for look in read_looks(node_dir):
            candidate = (look.why == "hang", look.at, look_dir(node_dir, look.id))
            last[node] = max(last.get(node, candidate), candidate)
    return {node: folder for node, (_, _, folder) in last.items()}


def read_snapshots(
    folders: Mapping[int, Path], consoles: Iterable[tuple[int, Path]] = ()
) -> RankSnapshots:
    """What one look at each node recorded; an unfinished look is left out.

    For a node without a look, such as a pod that has ended, its console is read instead.
    """
    snapshots = RankSnapshots(folders={**folders})
    for node, console in consoles:
        if node not in folders and (
            printed := parse_printed_looks(read_tail(console, MOST_PRINTED_BYTES))
        ):
            ranks = tuple(worker.look for worker in printed)
            snapshots.folders[node] = console.parent
            snapshots.looks[node] = Look(id="", at=0.0, why="stop", attempt=0, ranks=ranks)
            snapshots.stacks.update({worker.look.rank: worker.stacks for worker in printed})
    for node, folder in folders.items():
        if look := read_look(folder):
            snapshots.looks[node] = look
            for worker in look.ranks:
                if stacks := read_stacks(folder, worker.rank):
                    snapshots.stacks[worker.rank] = stacks
                snapshots.traces[worker.rank] = read_collectives(folder, worker.rank)
    return snapshots


def moved_lately(snapshots: RankSnapshots) -> bool:
    """Whether a rank had entered a collective, or written a line, shortly before it was to end.

    Scripts without an optimizer, and those with long steps, count as silent all the same. A script
    that has made steps may write lines while it hangs.
    """
    ranks = [(worker, look.at) for look in snapshots.looks.values() for worker in look.ranks]
    last = ((last_collective_at(snapshots.traces.get(worker.rank, {})), at) for worker, at in ranks)
    has_entered = any(began_at and at - began_at < SILENT_S for began_at, at in last)
    return has_entered or any(
        not worker.steps and 0 <= worker.wrote_s < SILENT_S for worker, _ in ranks
    )


def tell_standing(run: RunFolder, snapshots: RankSnapshots) -> Iterator[Standing]:
    """Where each rank's main thread stood; skips nodes where a rank has just made a step."""
    for node, look in snapshots.looks.items():
        if look.why == "asked" and any(
            worker.steps and worker.silent_s < STANDS_S for worker in look.ranks
        ):
            continue
        place = str(snapshots.folders[node].relative_to(run.path))
        for worker in look.ranks:
            stacks = snapshots.stacks.get(worker.rank)
            thread, frames = _awaited(stacks) if stacks else ("", ())
            if frames or worker.state in ("D", "T"):
                file = f"{place}/{STACKS.format(rank=worker.rank)}"
                line = LogLine(file=file, node=node, rank=worker.rank)
                yield Standing(line=line, frames=frames, look=worker, thread=thread)


def _awaited(stacks: RankStacks) -> tuple[str, tuple[Frame, ...]]:
    """The main thread's frames; those of another thread, by name, if Python's end waits for it."""
    if any(frame.function == "_shutdown" for frame in stacks.main_frames[-1:]):
        others = sorted(stacks.threads[1:], key=lambda thread: not own_place(thread.frames))
        for thread in others[:1]:
            return thread.name or "(no name)", thread.frames
    return "", stacks.main_frames


def tell_recorded(
    run: RunFolder,
    snapshots: RankSnapshots,
    logs: Sequence[WorkerLog],
    first: WorkerEnd | None,
    *,
    waits_s: float,
    goes_on: bool,
) -> Iterator[LogLine]:
    """What is wrong between the ranks' collectives, worst first; ``logs`` are of the workers.

    Waits shorter than ``waits_s`` are ignored, and slow ranks unless the run ``goes_on``. A worker
    that ended by an exception has left its recorder's trace beside it: a look from before its last
    collective says nothing of that one. ``first`` is the worker that failed first, or that ended
    while the others needed it.
    """
    failed = {log: read_object(run.path / log.folder / FAILED_COLLECTIVES) for log in logs}
    last_at = max(map(last_collective_at, failed.values()), default=0.0)
    looks = [look for look in snapshots.looks.values() if look.at >= last_at]
    trace_of = {
        worker.rank: snapshots.traces.get(worker.rank) for look in looks for worker in look.ranks
    }
    traces = {rank: trace for rank, trace in trace_of.items() if trace}
    files = {
        rank: str(snapshots.folders[node].relative_to(run.path)) for rank, node in _nodes(snapshots)
    }
    nodes = dict(_nodes(snapshots))
    places = {rank: own_place(worker.main_frames) for rank, worker in snapshots.stacks.items()}
    at = max((look.at for look in looks), default=0.0)
    left = {first.rank: first} if first and first.cause is Cause.EXITED_EARLY else {}
    for rank, end in left.items():
        files[rank], nodes[rank] = end.log, end.node_index
    for log, trace in failed.items():
        path, rank = run.path / log.folder / FAILED_COLLECTIVES, log.rank or 0
        if trace:
            if COLLATERAL.search(read_error(path.parent)):
                _open_last(trace)
            traces[rank], nodes[rank], waits_s = trace, log.node_index, 0.0
            places[rank] = own_place(read_frames(path.parent))
            files[rank] = f"{log.folder}/{FAILED_COLLECTIVES}"
            with contextlib.suppress(OSError):
                at = max(at, path.stat().st_mtime)
    for finding in join_recorders(traces, at, waits_s=waits_s, places=places, left=left):
        if finding.kind == "slow" and not goes_on:
            continue
        rank = finding.ranks[0]
        line = LogLine(file=files[rank], text=finding.text, node=nodes[rank], rank=rank)
        yield replace(line, joined=True, frame=places.get(rank, ""))


_CALL = re.compile(r'^[ |]*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def read_frames(folder: Path) -> tuple[Frame, ...]:
    """Where a worker's main thread was as it crashed, or raised; the newest call is first."""
    for thread in parse_faulthandler(read_tail(folder / CRASHED_STACKS))[:1]:
        return thread.frames
    if calls := _CALL.findall(read_traceback(folder / ERROR_FILE)[0]):
        return tuple(Frame(file=f, line=int(n), function=name) for f, n, name in reversed(calls))
    # A script that has switched faulthandler on has it write there.
    _, crash, stacks = read_tail(folder / STDERR_FILE).rpartition(CRASH)
    threads = parse_faulthandler(stacks) if crash else ()
    return threads[0].frames if threads else ()


def _nodes(snapshots: RankSnapshots) -> Iterator[tuple[int, int]]:
    return ((worker.rank, node) for node, look in snapshots.looks.items() for worker in look.ranks)


def _open_last(trace: dict[str, Any]) -> None:
    """Marks the failed call as not over: torch counts a call as over once it has timed out."""
    entries = trace.get("entries")
    last = entries[-1] if isinstance(entries, list) and entries else None
    if isinstance(last, dict):
        last.update(retired=False, state="scheduled")
