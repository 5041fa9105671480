"""Logs that torchrun, or anybody, left: a folder of them, one file, or what comes on stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from launcher.contract.errors import name_ending
from launcher.contract.worker_end import WorkerEnd, is_own_failure
from launcher.plan.torchrun import parse_failures
from launcher.runs.failure import decide_report
from launcher.verdict.evidence import Evidence, LogReading, read_error_file
from launcher.verdict.log_line import LogLine
from launcher.verdict.places import name_nodes, node_in

MOST_FILES = 2000
MOST_GPUS = 8
"""Of a usual node: lower ranks of a log that names no node are on the first one, most likely."""
NO_LOGS = re.compile(
    r"\.(?:pt|pth|ckpt|bin|safetensors|np[yz]|gz|zip|tar|pyz?|so|pkl|png|jpe?g|ya?ml|md|toml)$"
)
_OF_RANK = re.compile(r"attempt_\d+/(?P<inner>\d+)/|[-_./]?rank[-_]?(?P<rank>\d+)\b")
_WATCHDOG = re.compile(r"Watchdog caught collective|watchdog thread terminated")
_ATTEMPT = re.compile(r"attempt_(\d+)/")


def read_folder(folder: Path) -> Evidence:
    """The evidence in a folder of logs, of the newest attempt where torchrun made several."""
    files = list(_find_logs(folder))
    reading = LogReading(len(files))
    for name in files:
        path, place = folder / name, _place_of(name)
        if path.name == "error.json":
            reading.lines += read_error_file(path, place, folder)
        else:
            reading.read(path, place)
    missing = reading.missing() if files else ("a log: the folder holds none",)
    return _judge(str(folder), reading, missing, by_file=len(files) > 1)


def read_file(path: Path) -> Evidence:
    """The evidence in one log; it raises nothing."""
    reading = LogReading(1)
    reading.read(path, LogLine(file=path.name, number=0, text=""))
    return _judge(str(path), reading, reading.missing())


def read_stdin(stream: BinaryIO) -> Evidence:
    """The evidence in what comes on ``stream``, until its end."""
    reading = LogReading(1)
    reading.add(stream, LogLine(file="stdin", number=0, text=""))
    return _judge("stdin", reading, reading.missing())


def _find_logs(folder: Path) -> Iterator[str]:
    found = []
    for at, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if name[0] not in "._")
        names = (os.path.relpath(os.path.join(at, name), folder) for name in sorted(files))
        found += [name for name in names if not NO_LOGS.search(name)]
        if len(found) > MOST_FILES:
            break
    newest = max((int(n[1]) for name in found if (n := _ATTEMPT.search(name))), default=None)
    for name in found[:MOST_FILES]:
        attempt = _ATTEMPT.search(name)
        if (attempt is None or int(attempt[1]) == newest) and (folder / name).is_file():
            yield name


def _place_of(name: str) -> LogLine:
    found, stem = _OF_RANK.search(name), Path(name).stem
    numbered = [part for part in (*Path(name).parent.parts, stem) if any(map(str.isdigit, part))]
    rank, inner = (found["rank"], found["inner"]) if found else (None, None)
    return LogLine(
        file=name,
        number=0,
        text="",
        pod=stem if "-master-" in stem or "-worker-" in stem else "",
        host="" if found or not numbered else numbered[-1],
        node=node_in(name),
        rank=int(rank) if rank else None,
        local_rank=int(inner) if inner else None,
    )


def _read_codes(reports: Iterable[str]) -> dict[int, tuple[int, int]]:
    """The local rank and the exit code of each rank in torchrun's reports, the first one first."""
    failures = (one for text in reports for one in parse_failures(text))
    return {rank: (local, code) for rank, local, code in failures}


def _judge(
    subject: str, reading: LogReading, missing: tuple[str, ...], *, by_file: bool = False
) -> Evidence:
    """With the workers that failed, as ``runs.failure`` judges them."""
    lines = name_nodes(reading.lines, reports=reading.ends, by_file=by_file)
    codes = _read_codes(reading.ends)
    said: dict[int, tuple[float, LogLine]] = {}
    for order, line in enumerate(lines):
        tells = line.raised or _WATCHDOG.search(line.text)
        if tells and line.rank is not None:
            kept = said.get(line.rank)
            if kept is None or not is_own_failure(kept[1].text):
                said[line.rank] = (order, line)
    timed = all(line.at for _, line in said.values())
    ends = []
    for order, rank in enumerate({**codes, **said}, len(lines)):
        at, line = said.get(rank, (order, LogLine(file="", number=0, text="")))
        local_rank, code = codes.get(rank, (rank, 1))
        asked = (code == -15 or rank not in codes) and not is_own_failure(line.text)
        node = 0 if line.node is None and rank == local_rank < MOST_GPUS else line.node
        ends.append(
            WorkerEnd(
                attempt=0,
                rank=rank,
                local_rank=local_rank,
                node_index=-1 if node is None else node,
                exit_code=code,
                failed_at=line.at if timed and line.at else at,
                cause="terminated" if asked else "signal" if code < 0 else "exit",
                exception=line.text or name_ending(code),
                log=line.file,
            )
        )
    failure = decide_report(ends, ()) if ends else None
    return Evidence(
        subject=subject, failure=failure, lines=tuple(lines), missing=missing, is_placed=False
    )
