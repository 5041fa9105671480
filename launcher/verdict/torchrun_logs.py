"""Logs that torchrun, or anybody, left: a folder of them, one file, or what comes on stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from launcher.contract.errors import name_ending
from launcher.contract.worker_end import WorkerEnd, is_own_failure
from launcher.plan.torchrun import parse_failures
from launcher.runs.failure import decide_report
from launcher.verdict.evidence import Evidence, LogReading, read_error_file
from launcher.verdict.rules.all import OF_STARTERS
from launcher.verdict.scan import LogLine, name_nodes, read_stream

MOST_FILES = 2000
NO_LOGS = re.compile(
    r"\.(?:pt|pth|ckpt|bin|safetensors|np[yz]|gz|zip|tar|pyz?|so|pkl|png|jpe?g|ya?ml|md|toml)$"
)
_OF_RANK = re.compile(r"attempt_\d+/(?P<rank>\d+)/|[-_./]?rank[-_]?(?P<named>\d+)\b")
_OF_NODE = re.compile(r"\bnode[-_]?(?P<node>\d+)\b")
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")
_AGENT = re.compile(r"^[IWE]\d{4} [\d:.]+ (\d+) \S*torch/distributed")
_WATCHDOG = re.compile(r"Watchdog caught collective|watchdog thread terminated")
_ATTEMPT = re.compile(r"attempt_(\d+)/")


def read_folder(folder: Path) -> Evidence:
    """The evidence in a folder of logs, of the newest attempt where torchrun made several."""
    files = list(_find_logs(folder))
    reading = LogReading(len(files))
    reports = []
    for name in files:
        path, place = folder / name, _place_of(name)
        if path.name == "error.json":
            reading.lines += read_error_file(path, place, folder)
        else:
            reading.read(path, place)
            reports.append(_read_end(path))
    missing = reading.missing() if files else ("a log: the folder holds none",)
    return _judge(str(folder), reading.lines, reports, missing)


def read_file(path: Path) -> Evidence:
    """The evidence in one log; it raises nothing."""
    reading = LogReading(1)
    reading.read(path, LogLine(file=path.name, number=0, text=""))
    return _judge(str(path), reading.lines, [_read_end(path)], reading.missing())


def read_stdin(stream: BinaryIO) -> Evidence:
    """The evidence in what comes on ``stream``, until its end."""
    reading = LogReading(1)
    found, passed_over, tail = read_stream(stream, LogLine(file="stdin", number=0, text=""))
    reading.add(found, "stdin", passed_over)
    return _judge("stdin", reading.lines, [tail.decode(errors="replace")], reading.missing())


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


def _place_of(name: str) -> LogLine:
    rank, node = _OF_RANK.search(name), _OF_NODE.search(name)
    number = (rank["rank"] or rank["named"]) if rank else None
    return LogLine(
        file=name,
        number=0,
        text="",
        node=int(node["node"]) if node else None,
        rank=None if number is None else int(number),
    )


@dataclass(frozen=True, kw_only=True)
class _Code:
    """How torchrun's report says that a rank ended; ``node`` is counted from its local rank."""

    rank: int
    local_rank: int
    code: int
    node: int | None


def _read_codes(reports: Iterable[str], lines: Iterable[LogLine]) -> dict[int, _Code]:
    """By rank, those that failed first in front."""
    found: dict[int, _Code] = {}
    for text in reports:
        failures = parse_failures(text)
        nproc = 1 + max((local for _, local, _ in failures), default=0)
        for rank, local, code in failures:
            node, rest = divmod(rank - local, nproc)
            place = None if rest else node
            found[rank] = _Code(rank=rank, local_rank=local, code=code, node=place)
    for line in lines if not found else ():  # It was ended before its report.
        if told := _FAILED.search(line.text):
            rank = int(told["rank"])
            code = int(told["code"])
            found[rank] = _Code(rank=rank, local_rank=rank, code=code, node=line.node)
    return found


def _judge(
    subject: str, lines: Sequence[LogLine], reports: Iterable[str], missing: tuple[str, ...]
) -> Evidence:
    """With the workers that failed, as ``runs.failure`` judges them."""
    lines = name_nodes(lines)
    agents = {found[1] for line in lines if (found := _AGENT.search(line.text))}
    if len(agents) == 1 and 0 in {line.rank for line in lines}:
        # Rank 0 is on node 0, and so are all others of the same agent.
        lines = [replace(line, node=line.node or 0) for line in lines]
    codes = _read_codes(reports, lines)
    said: dict[int, tuple[float, LogLine]] = {}
    for order, line in enumerate(_with_ranks(lines, codes)):
        tells = line.raised or _WATCHDOG.search(line.text)
        if tells and line.rank is not None and line.text != "KeyboardInterrupt":
            kept = said.get(line.rank)
            if kept is None or not is_own_failure(kept[1].text):
                said[line.rank] = (order, line)
    timed = all(line.at for _, line in said.values())
    ends = []
    interrupted = {x.rank for x in lines if x.text == "KeyboardInterrupt" and x.rank is not None}
    for order, rank in enumerate({**codes, **said, **dict.fromkeys(interrupted)}, len(lines)):
        at, line = said.get(rank, (order, LogLine(file="", number=0, text="")))
        end = codes.get(rank)
        code = end.code if end else 1
        asked = (code == -15 or end is None) and not is_own_failure(line.text)
        node = end.node if end and line.node is None else line.node
        ends.append(
            WorkerEnd(
                attempt=0,
                rank=rank,
                local_rank=end.local_rank if end else rank,
                node_index=-1 if node is None else node,
                exit_code=code,
                failed_at=line.at if timed and line.at else at,
                cause="terminated" if asked else "signal" if code < 0 else "exit",
                exception=line.text or name_ending(code),
                log=line.file,
            )
        )
    if len(agents) <= 1 and 0 in {end.rank for end in ends}:
        ends = [replace(end, node_index=max(0, end.node_index)) for end in ends]
    failure = decide_report(ends, ()) if ends else None
    return Evidence(subject=subject, failure=failure, lines=tuple(lines), missing=tuple(missing))


def _with_ranks(lines: Sequence[LogLine], codes: Mapping[int, _Code]) -> Iterator[LogLine]:
    """The lines; an exception that no rank was named for is that of the one that ended with 1."""
    named = {line.rank for line in lines if line.raised}
    open_ranks = [rank for rank, end in codes.items() if end.code == 1 and rank not in named]
    for line in lines:
        nameless = line.raised and line.rank is None and not OF_STARTERS.search(line.text)
        if nameless and open_ranks and is_own_failure(line.text):
            yield replace(line, rank=open_ranks[0])
        else:
            yield line
