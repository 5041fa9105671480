"""The guard: one small process above each worker, which passes signals on, kills after the grace,
cleans up, and records the end.

torch's agent starts the guard, and the script runs in the guard's only child. So ``os._exit(0)`` is
a success, a signal is seen as a signal, a handler that only sets a flag cannot delay a restart, and
processes that the script leaves running end with it. Standard library only; one thread.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from launcher.agent import disk, processes, signals
from launcher.agent.stopping import StopFiles
from launcher.agent.worker import start
from launcher.agent.worker.heartbeat import hung_mark, read_heartbeat
from launcher.agent.worker_exit import own_code, read_failed_at, read_oom_kills, write_exit
from launcher.contract import protocol
from launcher.contract.ending import WorkerExit
from launcher.contract.reports.look import CRASH, CRASHED_STACKS

WORKER_DIR = "LAUNCHER_WORKER_DIR"
"""The worker's log folder, for the guard alone."""
EXIT_GRACE_S = "LAUNCHER_EXIT_GRACE_S"
PARENT_PID = "LAUNCHER_PARENT_PID"
PRIVATE_VARIABLES = (WORKER_DIR, EXIT_GRACE_S, PARENT_PID)
"""Not for the script to see."""
POLITE_S = 1.0
"""What the children of a script that ended well have between SIGTERM and SIGKILL."""
KILL_AGAIN_S = 1.0
"""Seconds between two SIGKILLs to a script."""

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_BLOCKED = frozenset({*signals.ENDING, *_PASSED_ON, signal.SIGCHLD})


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What the guard's environment says."""

    folder: Path
    node_dir: Path
    heartbeat: Path
    asked_file: Path
    agent_pid: int
    exit_grace_s: float
    attempt: int
    rank: int
    local_rank: int


def enter_forked(*argv: str) -> None:
    """Runs a worker in a fork of the warm process; torch's agent calls this function."""
    from launcher.agent.engine import preload

    def prepare() -> None:
        start.leave_multiprocessing(preload.KEPT_FDS, preload.STDIN_FD, preload.MAIN)
        start.reseed()

    _run(argv, preload.SERVER_PID, preload.SYS_PATH, prepare)
    # The script has succeeded. torch has this process wait for the node's other workers, with the
    # handlers of the warm process, which do nothing.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
    pids = (int(os.environ[PARENT_PID]), preload.SERVER_PID)
    threading.Thread(target=_end_on_signal, args=pids, daemon=True).start()


def _end_on_signal(agent_pid: int, parent_pid: int) -> None:
    """Ends this process once the agent signals it, or has gone.

    Other senders' signals are ignored: torch's agent would wait for ever for a process that died
    while it waited for the node's other workers.
    """
    while True:
        received = processes.wait_for_signal(frozenset(signals.ENDING), None)
        if os.getppid() != parent_pid or (received is not None and received[1] == agent_pid):
            os._exit(0)


def enter_fresh(argv: tuple[str, ...]) -> NoReturn:
    """Runs a worker in a new interpreter; torch's agent starts this as a command."""
    parent_pid = int(os.environ.get(PARENT_PID, os.getppid()))
    # sys.path[0] is the agent's archive, which no script should see.
    _run(argv, parent_pid, tuple(sys.path[1:]), lambda: None)
    sys.exit(0)


def _run(
    argv: tuple[str, ...],
    parent_pid: int,
    sys_path: tuple[str, ...],
    prepare: start.Prepare,
) -> None:
    """Returns when the script succeeded; otherwise ends this process as the script ended."""
    place = _read_place(os.environ)
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    processes.adopt_orphans()
    try:
        processes.die_with_parent(parent_pid, signal.SIGTERM)
    except processes.ParentGoneError:
        os._exit(128 + signal.SIGKILL)
    guard_pid = os.getpid()
    _flush()
    pid = os.fork()
    if pid == 0:
        try:
            processes.die_with_parent(guard_pid)
        except processes.ParentGoneError:
            os._exit(128 + signal.SIGKILL)
        processes.let_trace(place.agent_pid)
        for name in PRIVATE_VARIABLES:
            os.environ.pop(name, None)
        start.run(argv, sys_path, place.folder, prepare)
    watch = _Watch(pid, parent_pid, place)
    # Ended by the script's end, or the agent's, or a signal's grace.
    status = watch.wait()
    code = os.waitstatus_to_exitcode(status)
    # Only the children of a script that ended well get time between SIGTERM and SIGKILL.
    processes.end_children(polite_s=POLITE_S if code == 0 else 0.0)
    _write_exit(place, code, watch)
    with contextlib.suppress(OSError):
        (place.folder / protocol.ENDED_FILE).unlink()
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    if code != 0:
        _end_like(code)


class _Watch:
    """Waits for the script and passes signals on to it."""

    def __init__(self, pid: int, parent_pid: int, place: _Place) -> None:
        self.was_asked = self.had_failed = False
        self.kills_before = read_oom_kills()
        self._pid, self._parent_pid, self._place = pid, parent_pid, place
        self._kill_at: float | None = None

    def wait(self) -> int:
        """The script's wait status."""
        received: tuple[int, int] | None = None
        while True:
            # Checked before acting on the signal: a script that is gone by now ended by itself.
            if (status := processes.reap().get(self._pid)) is not None:
                return status
            self._on_signal(*(received or (None, 0)))
            received = _next_signal(self._kill_at)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                processes.send(self._pid, signal.SIGKILL)
                self._kill_at = time.monotonic() + KILL_AGAIN_S

    def _on_signal(self, signum: int | None, sender: int) -> None:
        if os.getppid() != self._parent_pid:
            # The agent is gone: no process waits for this worker any more.
            processes.end_children()
            os._exit(128 + signal.SIGKILL)
        if signum is None:
            return
        if signum in _PASSED_ON:
            processes.send(self._pid, signum)
        # Only from the agent: the supervisor acts on signals to all processes of the node.
        elif signum in signals.ENDING and sender == self._place.agent_pid:
            if not self.was_asked:
                folder = self._place.folder
                self.had_failed = (folder / protocol.ERROR_FILE).exists() or own_code(folder) != 0
                with contextlib.suppress(OSError):
                    self._place.asked_file.touch()
            self.was_asked = True
            processes.send(self._pid, signum)
            processes.send(self._pid, signal.SIGCONT)
            self._kill_at = self._kill_at or time.monotonic() + _grace_s(self._place)


def _next_signal(until: float | None) -> tuple[int, int] | None:
    limit_s = None if until is None else max(0.0, until - time.monotonic())
    return processes.wait_for_signal(_BLOCKED, limit_s)


def _grace_s(place: _Place) -> float:
    """The time from SIGTERM to SIGKILL. Without a stop request SIGTERM means a restart."""
    request = StopFiles(place.node_dir).read_request()
    if request is None or request.reason == protocol.STOP_REASON_RESIZE:
        return place.exit_grace_s
    # The clock may have been set since: never wait longer than the request's own grace.
    left_s = min(request.deadline - time.time(), request.deadline - request.at)
    return max(place.exit_grace_s, left_s)


def _read_place(environ: Mapping[str, str]) -> _Place:
    return _Place(
        folder=Path(environ[WORKER_DIR]),
        node_dir=Path(environ[protocol.NODE_DIR]),
        heartbeat=Path(environ[protocol.HEARTBEAT]),
        asked_file=Path(environ[protocol.ASKED_FILE]),
        agent_pid=int(environ[PARENT_PID]),
        exit_grace_s=float(environ[EXIT_GRACE_S]),
        attempt=int(environ[protocol.NODE_ATTEMPT]),
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
    )


def _write_exit(place: _Place, code: int, watch: _Watch) -> None:
    beat, now = read_heartbeat(place.heartbeat), time.time()
    record = WorkerExit(
        attempt=place.attempt,
        rank=place.rank,
        local_rank=place.local_rank,
        exit_code=code,
        failed_at=read_failed_at(place.folder, otherwise=now),
        was_asked=watch.was_asked,
        had_failed=watch.had_failed,
        own_code=own_code(place.folder),
        hung=hung_mark(place.heartbeat).exists(),
        oom_killed=read_oom_kills() > watch.kills_before,
        has_room=code == 0 or disk.has_room(place.folder),
        steps=beat.steps if beat else 0,
    )
    # A full disk must not turn a good ending into a bad one.
    with contextlib.suppress(OSError):
        if crash := start.stacks_file(place.heartbeat).read_text().partition(CRASH)[2]:
            (place.folder / CRASHED_STACKS).write_text(crash)
    with contextlib.suppress(OSError):
        write_exit(place.folder, record)


def _end_like(code: int) -> NoReturn:
    _flush()
    if code < 0:
        # The script may have dumped its core already.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code > 0 else 128 - code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
