"""Logs that torchrun, or anybody, left: a folder of them, one file, or what comes on stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from launcher.agent.endings import judge_worker
from launcher.contract.ending import WorkerExit, is_own_failure
from launcher.contract.errors import name_ending
from launcher.plan.torchrun import parse_failures
from launcher.runs.failure import decide_report
from launcher.verdict.evidence import Evidence, LogReading, read_error_file
from launcher.verdict.log_line import LogLine
from launcher.verdict.places import name_nodes, node_in
from launcher.verdict.rules.all import OF_STARTERS

MOST_FILES = 2000
MOST_GPUS = 8
"""GPUs of a usual node: in a log that names no node, ranks below this are likely on node 0."""
NO_LOGS = re.compile(
    r"\.(?:pt|pth|ckpt|bin|safetensors|np[yz]|gz|zip|tar|pyz?|so|pkl|png|jpe?g|ya?ml|md|toml)$"
)
_OF_RANK = re.compile(r"attempt_\d+/(?P<inner>\d+)/|[-_./]?rank[-_]?(?P<rank>\d+)\b")
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")
_AGENT = re.compile(r"^[IWE]\d{4} [\d:.]+ (\d+) \S*torch/distributed")
_WATCHDOG = re.compile(r"Watchdog caught collective|watchdog thread terminated")
_ATTEMPT = re.compile(r"attempt_(\d+)/")
_CLOSED_HERE = re.compile(r"closed by peer \[(?:127\.|::1)")
_LEFT = "a rank that the others still needed has ended without an error"


def read_folder(folder: Path) -> Evidence:
    """The evidence in a folder of logs, of the newest attempt where torchrun made several."""
    files = list(_find_logs(folder))
    reading = LogReading(len(files))
    for name in files:
        path, place = folder / name, _place_of(name)
        if path.name == "error.json":
            reading.lines += read_error_file(path, place, folder)
        else:
            reading.read_file(path, place)
    missing = reading.missing() if files else ("a log: the folder holds none",)
    return _judge(str(folder), reading, missing, by_file=len(files) > 1)


def read_file(path: Path) -> Evidence:
    """The evidence in one log; it raises nothing."""
    reading = LogReading(1)
    reading.read_file(path, LogLine(file=path.name))
    return _judge(str(path), reading, reading.missing())


def read_stdin(stream: BinaryIO) -> Evidence:
    """The evidence in what comes on ``stream``, until its end."""
    reading = LogReading(1)
    reading.add(stream, LogLine(file="stdin"))
    return _judge("stdin", reading, reading.missing())


def _find_logs(folder: Path) -> Iterator[str]:
    log_names = []
    for at, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if name[0] not in "._")
        in_folder = (os.path.relpath(os.path.join(at, name), folder) for name in sorted(files))
        log_names += [name for name in in_folder if not NO_LOGS.search(name)]
        if len(log_names) > MOST_FILES:
            break
    newest = max((int(n[1]) for name in log_names if (n := _ATTEMPT.search(name))), default=None)
    for name in log_names[:MOST_FILES]:
        attempt = _ATTEMPT.search(name)
        if (attempt is None or int(attempt[1]) == newest) and (folder / name).is_file():
            yield name


def _place_of(name: str) -> LogLine:
    match, stem = _OF_RANK.search(name), Path(name).stem
    numbered = [part for part in (*Path(name).parent.parts, stem) if any(map(str.isdigit, part))]
    rank, inner = (match["rank"], match["inner"]) if match else (None, None)
    return LogLine(
        file=name,
        pod=stem if "-master-" in stem or "-worker-" in stem else "",
        host="" if match or not numbered else numbered[-1],
        node=node_in(name),
        rank=int(rank) if rank else None,
        local_rank=int(inner) if inner else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Code:
    """How torchrun's report says that a rank ended; ``node`` is None if it is not known."""

    local_rank: int
    code: int
    node: int | None


def _read_codes(reports: Iterable[str], lines: Iterable[LogLine]) -> dict[int, _Code]:
    """How ranks ended, by rank; the root cause comes first."""
    codes: dict[int, _Code] = {}
    for text in reports:
        failures = parse_failures(text)
        nproc = 1 + max((local for _, local, _ in failures), default=0)
        for rank, local, code in failures:
            codes[rank] = _Code(local_rank=local, code=code, node=_node_of(rank - local, nproc))
    for line in lines if not codes else ():  # torchrun was ended before its report.
        if match := _FAILED.search(line.text):
            rank = int(match["rank"])
            if not line.node:  # On other nodes the local rank is not the rank.
                codes[rank] = _Code(local_rank=rank, code=int(match["code"]), node=line.node)
    return codes


def _node_of(first: int, least: int) -> int | None:
    """The node whose first rank is ``first``, if each node has ``least`` workers or more.

    If several nodes fit, those with at most ``MOST_GPUS`` workers on each are preferred.
    """
    fit = [node for node in range(1, first + 1) if first % node == 0 and first // node >= least]
    usual = [node for node in fit if first // node <= MOST_GPUS]
    return 0 if first == 0 else next(iter(usual or fit), None)


def _judge(
    subject: str, reading: LogReading, missing: tuple[str, ...], *, by_file: bool = False
) -> Evidence:
    """The evidence, with the failed workers as ``runs.failure`` judges them."""
    lines = name_nodes(reading.lines, reports=reading.tails, by_file=by_file)
    agents = {match[1] for line in lines if (match := _AGENT.search(line.text))}
    if len(agents) == 1 and 0 in {line.rank for line in lines}:
        # Rank 0 is on node 0, and so are all others of the same agent.
        lines = [replace(line, node=line.node or 0) for line in lines]
    codes = _read_codes(reading.tails, lines)
    told_by_rank: dict[int, tuple[float, LogLine]] = {}
    for order, line in enumerate(_with_ranks(lines, codes)):
        tells = line.raised or _WATCHDOG.search(line.text)
        if tells and line.rank is not None and line.text != "KeyboardInterrupt":
            kept = told_by_rank.get(line.rank)
            if kept is None or not is_own_failure(kept[1].text):
                told_by_rank[line.rank] = (order, line)
    interrupted = {
        line.rank: None
        for line in lines
        if line.text == "KeyboardInterrupt" and line.rank is not None
    }
    timed = all(line.at for _, line in told_by_rank.values())
    worker_ends = []
    for order, rank in enumerate({**codes, **told_by_rank, **interrupted}, len(lines)):
        at, line = told_by_rank.get(rank, (order, LogLine()))
        end = codes.get(rank, _Code(local_rank=rank, code=1, node=line.node))
        record = WorkerExit(
            attempt=0,
            rank=rank,
            local_rank=end.local_rank,
            exit_code=end.code,
            failed_at=line.at if timed and line.at else at,
            was_asked=end.code == -15 or rank not in codes,
            had_failed=True,  # if what it wrote tells so
        )
        node = end.node if line.node is None else line.node
        index, words = -1 if node is None else node, line.text or name_ending(end.code)
        judged = judge_worker(record, line.text)
        worker_ends.append(replace(judged, node_index=index, exception=words, log=line.file))
    failure = decide_report(worker_ends, ()) if worker_ends else None
    if len(worker_ends) == 1 and _CLOSED_HERE.search(worker_ends[0].exception):
        # Both processes are on one machine, so no network failed; nor is a failed peer reported.
        lines.append(LogLine(file=worker_ends[0].log, text=_LEFT))
    is_one_node = _is_one_node(lines, agents) and not any(end.node_index > 0 for end in worker_ends)
    return Evidence(
        subject=subject,
        failure=failure,
        lines=tuple(lines),
        missing=missing,
        is_placed=False,
        only_node=0 if is_one_node else None,
    )


def _is_one_node(lines: Sequence[LogLine], agents: Collection[str]) -> bool:
    """Whether the lines are of one node: they name a worker, host or agent, and no second node."""
    hosts = {line.host for line in lines} - {""}
    others = any(line.node or line.pod or (line.rank or 0) >= MOST_GPUS for line in lines)
    names_worker = hosts or agents or any(line.raised or line.rank is not None for line in lines)
    return bool(names_worker) and not others and len(hosts) < 2 and len(agents) < 2


def _with_ranks(lines: Sequence[LogLine], codes: Mapping[int, _Code]) -> Iterator[LogLine]:
    """The lines; an exception without a rank goes to the first rank with code 1 that has none."""
    named = {line.rank for line in lines if line.raised}
    open_ranks = [rank for rank, end in codes.items() if end.code == 1 and rank not in named]
    for line in lines:
        nameless = line.raised and line.rank is None and not OF_STARTERS.search(line.text)
        if nameless and open_ranks and is_own_failure(line.text):
            yield replace(line, rank=open_ranks[0])
        else:
            yield line
