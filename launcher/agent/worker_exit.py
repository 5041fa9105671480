"""How workers ended: the record that a guard leaves, and what is read from a worker's folder.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.agent import disk
from launcher.contract import protocol
from launcher.contract.worker_end import WorkerEnd, is_own_failure, name_cause, sort_ends

TAIL_BYTES = 32 * 1024
_FATAL = "Fatal Python error: "
_THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'\s+what\(\): *(.*)")
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """How one worker ended: what its guard leaves in EXIT_FILE (see ``contract.protocol``)."""

    rank: int
    local_rank: int
    exit_code: int
    at: float
    steps: int
    terminated: bool = False
    had_failed: bool = False
    message: str = ""

    def to_json(self) -> str:
        """What ``from_json`` reads back equal."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> ExitRecord:
        """Raises ValueError or TypeError for any other text."""
        return cls(**json.loads(text))


def read_ends(
    folder: Path,
    attempt: int,
    *,
    run_dir: Path,
    hung: frozenset[int],
    out_of_memory: bool,
    killed: Sequence[ExitRecord] = (),
) -> tuple[WorkerEnd, ...]:
    """The workers of one attempt's folder that ended badly, causes first.

    ``killed`` are the records of workers whose guard had no time to write one.
    """
    paths = sorted(folder.glob(f"*/{protocol.EXIT_FILE}"))
    records = (*killed, *filter(None, map(_read_record, paths)))
    return sort_ends(
        _end_of(record, folder, attempt, run_dir, record.rank in hung, out_of_memory)
        for record in records
        if record.exit_code != 0
    )


def has_succeeded(exit_file: Path) -> bool:
    """Whether a worker ended well by itself; False where it left no record."""
    record = _read_record(exit_file)
    return record is not None and record.exit_code == 0 and not record.terminated


def _read_record(path: Path) -> ExitRecord | None:
    try:
        return ExitRecord.from_json(path.read_text())
    except (OSError, ValueError, TypeError):
        return None


def _end_of(
    record: ExitRecord, folder: Path, attempt: int, run_dir: Path, hung: bool, out_of_memory: bool
) -> WorkerEnd:
    folder = folder / protocol.RANK_FOLDER.format(rank=record.rank)
    message = record.message or _read_message(folder, record.exit_code)
    # It failed by itself, and was still on its way out when the agent ended them all.
    failed_first = record.had_failed and is_own_failure(message)
    terminated = record.terminated and not failed_first
    cause = name_cause(
        record.exit_code, terminated=terminated, hung=hung, out_of_memory=out_of_memory
    )
    is_silent = not message and not disk.has_room(folder)
    if cause in ("exit", "signal") and (is_silent or disk.says_full(message)):
        cause = disk.CAUSE
    return WorkerEnd(
        attempt=attempt,
        rank=record.rank,
        local_rank=record.local_rank,
        exit_code=record.exit_code,
        at=min(record.at, _failed_at(folder, otherwise=record.at)),
        cause=cause,
        message=message,
        log=os.path.relpath(folder, run_dir),
        steps=record.steps,
    )


def _failed_at(folder: Path, *, otherwise: float) -> float:
    """When the exception was written: a worker may take long to end after it."""
    try:
        return (folder / protocol.ERROR_FILE).stat().st_mtime
    except OSError:
        return otherwise


def _read_message(folder: Path, exit_code: int) -> str:
    """The uncaught exception's line; else the last on stderr, of an abort or of a full disk."""
    if error := read_error(folder):
        return error[:500]
    # Faulthandler's stacks follow, whose last line says nothing.
    told, fatal, stacks = read_tail(folder / protocol.STDERR_FILE).partition(_FATAL)
    lines = told.splitlines() or [fatal + line for line in stacks.splitlines()[:1]]
    last = lines[-1][:500] if lines else ""
    if exit_code == -6:
        # An exception of C++ that nobody caught, as NCCL's watchdog throws: frames follow it.
        thrown = _THROWN.findall(told)
        return ": ".join(thrown[-1])[:500] if thrown else last
    return last if disk.says_full(last) else ""


def read_error(folder: Path) -> str:
    """The first line of a worker's uncaught exception; empty where it wrote none."""
    try:
        message = json.loads((folder / protocol.ERROR_FILE).read_text())["message"]
        text = message["message"] if isinstance(message, dict) else message
        return str(text).strip().partition("\n")[0]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def read_tail(path: Path, limit_bytes: int = TAIL_BYTES) -> str:
    """The end of a text that may be anything; empty where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            return file.read().decode(errors="backslashreplace")
    except OSError:
        return ""


def read_oom_kills(path: Path = _CGROUP_EVENTS) -> int:
    """How many processes of this container the kernel killed for memory; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
