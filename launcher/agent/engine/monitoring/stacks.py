"""A worker's stacks, or why there are none: by py-spy from outside where it may trace, else by the
worker's thread that answers for its collectives, and by faulthandler where that does not answer.

py-spy reads the worker's memory and stops nothing; only for the frames of C it pauses the worker
for some milliseconds. A worker that a signal has stopped cannot answer faulthandler.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.agent import processes
from launcher.agent.worker.start import STACKS_SIGNAL
from launcher.contract.process_stat import is_stopped
from launcher.contract.reports.look import Frame, RankStacks, ThreadStack, cut_threads

NOT_INSTALLED = "the Python that trains has no py-spy: pip install py-spy there, or in its image"
WRITE_LIMIT_S = 20.0
"""How long py-spy may take to write what it has recorded."""
_SETTLED_S = 0.1
"""Faulthandler writes in several calls, and does not announce the last one."""
_PTRACE_CAPABILITY = 19
_OWN_PACKAGE = Path(__file__).parents[3]
"""The archive's package, with the thread that answers looks and the frames that run the script."""
_PACKAGES = (f"{_OWN_PACKAGE}/agent/", f"{_OWN_PACKAGE.name}/agent/")
"""How the names of the package's files begin, with sources and with bytecode alone."""
_RUNS_SCRIPT = "/agent/worker/start.py"
_THREAD = re.compile(r"(?:Thread|Current thread) 0x[0-9a-f]+(?: \[(?P<name>.*)\])? \(most recent")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def find_py_spy() -> str:
    """The path of py-spy; empty if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else "")


class PySpy:
    """One py-spy for each worker, all at the same time."""

    def __init__(self, pids: Mapping[int, int], *, native: bool) -> None:
        program = find_py_spy()
        self._pids, self._missing = pids, "" if program else NOT_INSTALLED
        # A worker that a signal has stopped cannot be paused.
        self._paused = {rank: native and not is_stopped(pid) for rank, pid in pids.items()}
        self._runs = {
            rank: _start(program, pid, native=self._paused[rank])
            for rank, pid in pids.items()
            if program
        }

    def are_done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return all(run.poll() is not None for run, _, _ in self._runs.values())

    def read_stacks(self, rank: int) -> RankStacks:
        """What one rank's py-spy found; kills it if it is not done. Does not wait."""
        pid, missing = self._pids[rank], self._missing
        if rank in self._runs:
            run, out, errors = self._runs[rank]
            code = run.poll()
            if code is None:
                run.kill()
                if self._paused[rank]:
                    processes.send(pid, signal.SIGCONT)
            text, stderr = _read_fd(out), _read_fd(errors)
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if threads := parse_py_spy(json.loads(text), pid):
                    return RankStacks(rank=rank, pid=pid, taken_by="py-spy", threads=threads)
            missing = "py-spy took too long" if code is None else explain_py_spy(stderr, pid)
        return RankStacks(rank=rank, pid=pid, missing=missing)


def _start(program: str, pid: int, *, native: bool) -> tuple[subprocess.Popen[bytes], int, int]:
    out, errors = os.memfd_create("stacks"), os.memfd_create("errors")
    how = "--native" if native else "--nonblocking"
    command = [program, "dump", "--json", "--full-filenames", how, "--pid", str(pid)]
    run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
    return run, out, errors


def _read_fd(fd: int) -> str:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read().decode(errors="replace")


def record(pids: Mapping[int, int], paths: Mapping[int, Path], seconds: float) -> dict[int, str]:
    """Has py-spy record each rank for ``seconds`` into its file; returns why ranks have none."""
    program = find_py_spy()
    if not program:
        return dict.fromkeys(pids, NOT_INSTALLED)
    how = ("--format", "speedscope", "--nonblocking", "--duration", f"{max(1.0, seconds):.0f}")
    runs = {
        rank: subprocess.Popen(
            [program, "record", *how, "--output", str(paths[rank]), "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, pid in pids.items()
    }
    missing = {}
    for rank, run in runs.items():
        try:
            _, stderr = run.communicate(timeout=seconds + WRITE_LIMIT_S)
        except subprocess.TimeoutExpired:
            run.kill()
            # Ended by the kill.
            stderr = run.communicate()[1]
        if not paths[rank].exists():
            missing[rank] = explain_py_spy(stderr, pids[rank])
    return missing


def parse_py_spy(dump: list[dict[str, Any]], pid: int) -> tuple[ThreadStack, ...]:
    """The threads of ``py-spy dump --json``. Pure."""
    return _script_threads(
        ThreadStack(
            name=thread["thread_name"] or "",
            is_main=thread["os_thread_id"] == pid or thread["thread_name"] == "MainThread",
            frames=tuple(
                Frame(function=f["name"], file=f["filename"], line=f["line"])
                for f in thread["frames"]
            ),
        )
        for thread in dump
    )


def explain_py_spy(stderr: str, pid: int) -> str:
    """Why py-spy failed, with the right that it lacks, from what it wrote to stderr."""
    if not os.path.exists(f"/proc/{pid}"):
        return "the process has ended"
    if "ermission denied" in stderr or "Operation not permitted" in stderr:
        right = f"the rights of pid {pid} (CapEff)"
        with contextlib.suppress(OSError, ValueError):
            held = int(_status("self")["CapEff"], 16)
            has_right = held >> _PTRACE_CAPABILITY & 1
            right = (
                "the same user, or a security profile that allows it"
                if has_right
                else "capability SYS_PTRACE"
            )
        return f"py-spy is not allowed to trace this process: it needs {right}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f"py-spy failed: {lines[0][:200] if lines else 'it said nothing'}"


def read_answered(from_py_spy: RankStacks, file: Path) -> RankStacks:
    """The stacks that the worker's own thread has written; those of py-spy if it has not."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if threads := parse_py_spy(json.loads(file.read_text()), from_py_spy.pid):
            return replace(from_py_spy, taken_by="worker", threads=threads)
    return from_py_spy


class Faulthandler:
    """Asks one worker's own faulthandler, unless the signal would do harm. Does not wait."""

    def __init__(self, from_py_spy: RankStacks, file: Path) -> None:
        self._from_py_spy, self._file = from_py_spy, file
        self._refused = _refuse(from_py_spy.pid, file)
        self._start = _size(file)
        if not self._refused:
            processes.send(from_py_spy.pid, STACKS_SIGNAL)

    def is_done(self) -> bool:
        """Whether faulthandler has written all, or will write nothing."""
        if self._refused:
            return True
        if _size(self._file) <= self._start:
            return False
        return time.time() - self._file.stat().st_mtime > _SETTLED_S

    def read_stacks(self) -> RankStacks:
        """The stacks, and why py-spy did not take them; or why there are none."""
        from_py_spy, threads = self._from_py_spy, tuple[ThreadStack, ...]()
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            file.seek(self._start)
            threads = parse_faulthandler(file.read().decode(errors="replace"))
        if threads:
            return replace(from_py_spy, taken_by="faulthandler", threads=threads)
        why = self._refused or "it did not answer the signal for its stacks"
        return replace(from_py_spy, missing=f"{why}; {from_py_spy.missing}")


def _refuse(pid: int, file: Path) -> str:
    """Why the signal must not be sent, or would tell nothing."""
    if is_stopped(pid):
        return "a signal has stopped it (kill -CONT continues it)"
    try:
        # Without faulthandler's handler the signal would end the process, or do anything else.
        if not int(_status(str(pid))["SigCgt"], 16) >> (STACKS_SIGNAL - 1) & 1:
            return "it has no handler for the stacks signal, as happens after exec"
        is_open = any(os.path.samefile(file, fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except (OSError, KeyError, ValueError) as error:
        return f"it cannot be seen: {error}"
    # The script may have closed the file, and its descriptor may be another file's now.
    return "" if is_open else "its script has closed the file for its stacks"


def _status(pid: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def parse_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """The threads of what faulthandler wrote; the main one is the last. Pure."""
    threads: list[ThreadStack] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            threads.append(ThreadStack(name=thread["name"] or ""))
        elif threads and (call := _FRAME.match(line)):
            number = int(call[2]) if call[2].isdigit() else 0
            frame = Frame(function=call[3], file=call[1], line=number)
            threads[-1] = ThreadStack(name=threads[-1].name, frames=(*threads[-1].frames, frame))
    if threads:
        threads[-1] = ThreadStack(name="MainThread", is_main=True, frames=threads[-1].frames)
    return _script_threads(threads)


def _script_threads(threads: Any) -> tuple[ThreadStack, ...]:
    """The script's threads, without the frames that run it and the thread that answers looks."""
    kept = []
    for thread in threads:
        frames = thread.frames
        runs = (n for n, f in enumerate(frames) if f.file.endswith(_RUNS_SCRIPT))
        frames = frames[: next(runs, len(frames))]
        # As in tracebacks, the frames that import and run a module are left out.
        frames = tuple(f for f in frames if not f.file.startswith(("<frozen ", *_PACKAGES)))
        if frames or thread.is_main:
            kept.append(ThreadStack(name=thread.name, is_main=thread.is_main, frames=frames))
    return cut_threads(kept)
