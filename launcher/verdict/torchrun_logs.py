"""Logs that torchrun, or anybody, left: a folder of them, one file, or what comes on stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from launcher.contract.errors import name_ending
from launcher.contract.worker_end import WorkerEnd, is_own_failure
from launcher.plan.torchrun import parse_failures
from launcher.runs.failure import decide_report
from launcher.verdict.evidence import Evidence, Reading, read_error_file
from launcher.verdict.scan import Line, read_stream

MOST_FILES = 2000
NO_LOGS = re.compile(
    r"\.(?:pt|pth|ckpt|bin|safetensors|np[yz]|gz|zip|tar|pyz?|so|pkl|png|jpe?g|ya?ml|md|toml)$"
)
_OF_RANK = re.compile(r"attempt_\d+/(?P<rank>\d+)/|[-_./]?rank[-_]?(?P<named>\d+)\b")
_OF_NODE = re.compile(r"\bnode[-_]?(?P<node>\d+)\b")
_ATTEMPT = re.compile(r"attempt_(\d+)/")


def read_folder(folder: Path) -> Evidence:
    """The evidence in a folder of logs, of the newest attempt where torchrun made several."""
    files = list(_find_logs(folder))
    reading = Reading(len(files))
    reports = []
    for name in files:
        path, place = folder / name, _place_of(name)
        if path.name == "error.json":
            reading.lines += read_error_file(path, place, folder)
        else:
            reading.read(path, place)
            reports.append(_read_end(path))
    missing = reading.missing() if files else ("a log: the folder holds none",)
    return _judge(str(folder), reading.lines, "\n".join(reports), missing)


def read_file(path: Path) -> Evidence:
    """The evidence in one log; it raises nothing."""
    reading = Reading(1)
    reading.read(path, Line(file=path.name, number=0, text=""))
    return _judge(str(path), reading.lines, _read_end(path), reading.missing())


def read_stdin(stream: BinaryIO) -> Evidence:
    """The evidence in what comes on ``stream``, until its end."""
    reading = Reading(1)
    found, passed_over, tail = read_stream(stream, Line(file="stdin", number=0, text=""))
    reading.add(found, "stdin", passed_over)
    return _judge("stdin", reading.lines, tail.decode(errors="replace"), reading.missing())


def _read_end(path: Path) -> str:
    """Where torchrun's report of failures stands."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 18)))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


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


def _place_of(name: str) -> Line:
    rank, node = _OF_RANK.search(name), _OF_NODE.search(name)
    number = (rank["rank"] or rank["named"]) if rank else None
    return Line(
        file=name,
        number=0,
        text="",
        node=int(node["node"]) if node else None,
        rank=None if number is None else int(number),
    )


def _judge(subject: str, lines: Sequence[Line], console: str, missing: tuple[str, ...]) -> Evidence:
    """With the workers that failed, as ``runs.failure`` judges them."""
    codes = {rank: code for rank, _, code in parse_failures(console)}
    # torch stops all others as soon as it sees one that failed.
    first = next(iter(codes), None)
    raised: dict[int, tuple[int, Line]] = {}
    for order, line in enumerate(lines):
        if line.raised and line.rank is not None:
            kept = raised.get(line.rank)
            if kept is None or not is_own_failure(kept[1].text):
                raised[line.rank] = (order, line)
    ends = []
    for rank in {**codes, **raised}:
        order, line = raised.get(rank, (len(lines), Line(file="", number=0, text="")))
        code = codes.get(rank, 1)
        asked = code == -15 and not is_own_failure(line.text)
        ends.append(
            WorkerEnd(
                attempt=0,
                rank=rank,
                local_rank=rank,
                node_index=line.node or 0,
                exit_code=code,
                failed_at=line.at or float(order if line.text or rank != first else -1),
                cause="terminated" if asked else "signal" if code < 0 else "exit",
                exception=line.text or name_ending(code),
                log=line.file,
            )
        )
    failure = decide_report(ends, ()) if ends else None
    return Evidence(
        subject=subject,
        failure=failure,
        lines=tuple(lines),
        missing=tuple(missing),
        knows_nodes=any(line.node is not None for line in lines),
    )
