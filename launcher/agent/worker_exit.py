"""Reads how a worker ended: its guard's record, its exception from files and stderr, the kernel's
kills for memory.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace
from pathlib import Path

from launcher.agent import disk
from launcher.agent.atomic_write import write_atomically
from launcher.agent.endings import judge_worker
from launcher.contract import protocol
from launcher.contract.ending import WorkerEnd, WorkerExit, show_line, sort_ends
from launcher.contract.records import dump_record, parse_record, read_object

TAIL_BYTES = 32 * 1024
_CPP_EXCEPTION = re.compile(
    r"terminate called after throwing an instance of '(.+)'\s+what\(\): *(.*)"
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*$")
_OF_THREAD = re.compile(r"Exception (?:in thread|ignored in).*\n\Z")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""torch puts it before each line of a traceback once the process group exists."""
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_OOM_COUNTS = (("", "memory.events"), ("memory", "memory.oom_control"))
"""Where a cgroup counts its kills for memory: version 2, and version 1."""
_INNER_TRACEBACK = "Original Traceback (most recent call last):"
"""Stands in a message that wraps the exception of another process, as those of a DataLoader do."""


def own_code(folder: Path) -> int:
    """The exit code with which a worker's script ended by itself; also 0 if it did not."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / protocol.ENDED_FILE).read_text())
    return 0


def write_exit(folder: Path, record: WorkerExit) -> None:
    """Writes the record into the worker's folder. Raises OSError."""
    write_atomically(folder / protocol.EXIT_FILE, dump_record(record))


def read_ends(folder: Path, run_dir: Path) -> tuple[WorkerEnd, ...]:
    """How the workers of one attempt's folder ended, well or badly, causes first."""
    ends = (read_end(path, run_dir) for path in folder.glob(f"*/{protocol.EXIT_FILE}"))
    return sort_ends(filter(None, ends))


def read_end(exit_file: Path, run_dir: Path) -> WorkerEnd | None:
    """How a worker ended; None where it left no record."""
    record, folder = read_object(exit_file), exit_file.parent
    try:
        if "was_asked" in record:
            end = judge_end(folder, parse_record(WorkerExit, record))
        else:  # an agent of an older version had judged it already
            end = parse_record(WorkerEnd, record)
    except ValueError:
        return None
    return replace(end, log=os.path.relpath(folder, run_dir))


def judge_end(folder: Path, record: WorkerExit) -> WorkerEnd:
    """How the worker of this folder ended."""
    code, stderr = record.exit_code, folder / protocol.STDERR_FILE
    # Of any other end than that of Python itself, a traceback is of what the script handled.
    exception = read_exception(stderr, code, may_have_raised=code == 1) if code else ""
    return judge_worker(record, exception)


def read_failed_at(folder: Path, *, otherwise: float) -> float:
    """When the exception was written, or the script ended: its process may end much later."""
    for name in (protocol.ERROR_FILE, protocol.ENDED_FILE):
        with contextlib.suppress(OSError):
            return min(otherwise, (folder / name).stat().st_mtime)
    return otherwise


def read_exception(stderr: Path, exit_code: int, *, may_have_raised: bool) -> str:
    """The line of a worker's output that says why it ended; empty if there is none.

    It is the line of the uncaught exception. Else it is that of the last traceback in ``stderr``,
    if the worker ``may_have_raised``; else the last line, if it is about an abort or a full disk.
    """
    if error := read_error(stderr.parent):
        return error
    # Without faulthandler's stacks, whose last line says nothing.
    output, fatal, stacks = read_tail(stderr).partition("Fatal Python error: ")
    if may_have_raised and (raised := _last_exception(output)):
        return raised
    lines = output.splitlines() or [fatal + line for line in stacks.splitlines()[:1]]
    last = show_line(lines[-1]) if lines else ""
    if exit_code == -6:
        # An exception of C++ that nobody caught, as NCCL's watchdog throws: frames follow it.
        cpp_exceptions = _CPP_EXCEPTION.findall(output)
        return show_line(": ".join(cpp_exceptions[-1])) if cpp_exceptions else last
    return last if disk.says_full(last) else ""


def _last_exception(output: str) -> str:
    """The line that names the exception of the last traceback, unless only a thread ended by it."""
    before, traceback, after = output.rpartition("Traceback (most recent call last):")
    if not traceback or _OF_THREAD.search(before):
        return ""
    lines = (_RANK_PREFIX.sub("", line) for line in reversed(after.splitlines()))
    return show_line(next((line for line in lines if _EXCEPTION.match(line)), ""))


def read_error(folder: Path) -> str:
    """The line of a worker's uncaught exception that says what went wrong; empty if it wrote none.

    It is the first line, or the last one of an exception that came from another process.
    """
    try:
        message = read_object(folder / protocol.ERROR_FILE)["message"]
        text = message["message"] if isinstance(message, dict) else message
        outer, is_wrapped, inner = str(text).lstrip().partition(_INNER_TRACEBACK)
        lines = [line for line in inner.splitlines() if line.strip() and line[0] != " "]
        # Of an exception without words, torch and the worker write the name and a colon.
        first_line = outer.partition("\n")[0].removesuffix(": ").rstrip()
        return show_line(lines[-1] if is_wrapped and lines else first_line)
    except KeyError:
        return ""


def read_traceback(path: Path) -> tuple[str, float]:
    """The traceback in a worker's error file, else its message, and when it was raised.

    The time is in seconds since the epoch. Empty and 0 if the file does not say.
    """
    message = read_object(path).get("message")
    fields = message if isinstance(message, dict) else {}
    info = fields.get("extraInfo")
    info = info if isinstance(info, dict) else {}
    raised_at = str(info.get("timestamp", ""))
    text = str(info.get("py_callstack") or fields.get("message", ""))
    return text, float(raised_at) if raised_at.replace(".", "", 1).isdecimal() else 0.0


def read_tail(path: Path, limit_bytes: int = TAIL_BYTES) -> str:
    """The end of a file that may hold anything, as text; empty if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            return file.read().decode(errors="backslashreplace")
    except OSError:
        return ""


def read_oom_kills(root: Path = _CGROUP, own_cgroups: Path = _OWN_CGROUPS) -> int:
    """How many processes of this one's cgroup the kernel killed for memory; 0 where unknown."""
    paths = dict[str, str]()
    with contextlib.suppress(OSError, ValueError):
        paths = dict(line.split(":", 2)[1:] for line in own_cgroups.read_text().splitlines())
    for controller, file in _OOM_COUNTS:
        # A container sees its own cgroup as the root, but /proc may give another path for it.
        for path in (paths.get(controller, "").strip("/"), ""):
            with contextlib.suppress(OSError, ValueError, KeyError):
                lines = (root / controller / path / file).read_text().splitlines()
                return int(dict(line.split() for line in lines)["oom_kill"])
    return 0
