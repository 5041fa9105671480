"""The agent of a node that is held: it waits for runs, starts each in a process of its own, and
ends after the idle limit.

torch is imported once. A run's node is a fork of this process: a supervisor as any other, whose
agent and workers have torch from the start. A run leaves nothing in this process, so each run finds
what the first one found. This process has one thread, and no worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from launcher.agent import processes, signals, streams
from launcher.agent.atomic_write import write_atomically
from launcher.agent.engine import preload
from launcher.agent.stopping import LAST_WORD_S, MARGIN_S
from launcher.agent.streams import say
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.errors import ExitCode
from launcher.contract.hold import (
    LEASE_S,
    READY_SAYS,
    RENEW,
    WARN_S,
    EndRun,
    Ready,
    StartRun,
)
from launcher.contract.node_plan import NodeTask, parse_task
from launcher.contract.process_stat import start_of, write_record
from launcher.contract.records import dump_record, parse_object, parse_record, read_object

POLL_S = 0.03
"""How often the node's folder is read."""
POLL_SHARED_S = 0.1
"""The same if the folder may lie on a file server."""
_OF_INTERPRETER = ("PYTHON", "LD_", "KMP_", "MKL_")
"""Prefixes of variables that are read when an interpreter starts, and not later."""
_SHARED = ("/tmp", "/dev/shm")


class Holder:
    """One held node, from its start to the idle limit."""

    def __init__(self, task: NodeTask, run_dir: Path, archive: str) -> None:
        self._idle_limit_s, self._archive = task.settings.hold_idle_s, archive
        self._prints_ready = task.settings.tee
        self._poll_s = POLL_SHARED_S if task.settings.meet_dir else POLL_S
        self._address, self._folder = task.node.local_addr, Path(task.node.log_dir)
        self._user = run_dir / protocol.HOLD_USER
        # Only in a container: on a machine, others use these folders too.
        is_contained = self._folder.is_relative_to(protocol.CONTAINER_RUN_DIR)
        mounted = {mount.target for mount in task.node.mounts}
        self._swept = [Path(name) for name in _SHARED if is_contained and name not in mounted]
        self._files_before: set[Path] = set()
        """The entries of the swept folders before the run; all others are removed after it."""
        self._last_user = 0.0, 0.0, ""
        self._child, self._run_id, self._grace_s, self._record_dir = 0, "", 0.0, Path()
        self._kill_at: float | None = None
        self._idle_since, self._has_warned, self._is_ending = 0.0, False, False

    def run(self, named: tuple[str, ...]) -> tuple[Cause, str]:
        """Blocks until nobody has run anything for the idle limit. Imports torch and ``named``."""
        preload.import_warm(named)
        # Forks share what the collector never touches again.
        gc.collect()
        gc.freeze()
        processes.adopt_orphans()
        # So that the run that uses this node gets its grace too.
        signal.signal(signal.SIGTERM, signals.only_when_ordered(self._on_end_signal))
        packages = _state_of_packages()
        ready = Ready(address=self._address, cpu_count=len(os.sched_getaffinity(0)))
        write_atomically(self._folder / protocol.HOLD_READY, dump_record(ready))
        if self._prints_ready:
            say(READY_SAYS + dump_record(ready))
        shown_at = self._idle_since = time.monotonic()
        while True:
            now = time.monotonic()
            if now - shown_at > protocol.ALIVE_S:
                shown_at = now
                with contextlib.suppress(OSError):
                    os.utime(self._folder / protocol.HOLD_READY)
            user, requests = self._find_user(now), self._list_requests()
            self._look_after_child(now, user, requests)
            if self._is_ending:
                if not self._child:
                    return Cause.STOP_REQUESTED, ""
                self._end_child(now, self._grace_s)
            elif not self._child and protocol.HOLD_START in requests:
                if _state_of_packages() != packages:
                    return Cause.COMPLETED, RENEW
                self._start()
            if self._child or user:
                self._idle_since, self._has_warned = now, False
            elif (detail := self._check_idle(now)) is not None:
                return Cause.COMPLETED, detail
            # Ended by the idle limit, or by the supervisor.
            time.sleep(self._poll_s)

    def _on_end_signal(self, _signum: int, _frame: object) -> None:
        self._is_ending = True

    def _list_requests(self) -> list[str]:
        # By a listing, for which clients of network file systems ask the server.
        with contextlib.suppress(OSError):
            return os.listdir(self._folder)
        return []

    def _list_swept(self) -> set[Path]:
        return {path for folder in self._swept for path in folder.glob("*")}

    def _pop_request(self, name: str) -> dict[str, Any]:
        """Reads a request and removes it. Raises ``ValueError``, ``OSError``."""
        path = self._folder / name
        try:
            return parse_object(path.read_bytes())
        finally:
            path.unlink(missing_ok=True)

    def _find_user(self, now: float) -> str:
        """The run whose launcher has shown life within ``LEASE_S``; empty without one.

        Measured by this machine's own clock.
        """
        # If a file server fails for a moment, what was last seen still counts.
        with contextlib.suppress(OSError), self._user.open() as file:
            changed_at = os.fstat(file.fileno()).st_mtime
            if changed_at != self._last_user[0]:
                self._last_user = changed_at, now, str(read_object(self._user).get("run_id", ""))
        _, seen_at, run_id = self._last_user
        return run_id if now - seen_at < LEASE_S else ""

    def _check_idle(self, now: float) -> str | None:
        left_s = self._idle_limit_s - (now - self._idle_since)
        if left_s <= 0:
            return f"nothing was run for {self._idle_limit_s / 60:.0f} min"
        if left_s < WARN_S < self._idle_limit_s and not self._has_warned:
            self._has_warned = True
            say(f"nothing runs here; the hold ends in {left_s / 60:.0f} min")
        return None

    # -- one run ----------------------------------------------------------------------------------

    def _look_after_child(self, now: float, user: str, requests: list[str]) -> None:
        if self._child and (status := processes.reap().get(self._child)) is not None:
            # Ends what the run's supervisor had no time to end.
            processes.end_children()
            code = os.waitstatus_to_exitcode(status)
            record = {"pid": self._child, "exit_code": code if code >= 0 else 128 - code}
            self._child = 0
            for path in self._list_swept() - self._files_before:
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    path.unlink()
            with contextlib.suppress(OSError):
                write_record(self._record_dir, record)
        if protocol.HOLD_END in requests:
            with contextlib.suppress(OSError, ValueError):
                end = parse_record(EndRun, self._pop_request(protocol.HOLD_END))
                if end.run_id == self._run_id:
                    self._end_child(now, end.grace_s)
        if self._child and user != self._run_id and self._kill_at is None:
            say("the launcher of the run on this node is gone: ending the run")
            self._end_child(now, self._grace_s + LAST_WORD_S + MARGIN_S)
        if self._child and self._kill_at is not None and now >= self._kill_at:
            processes.send(self._child, signal.SIGKILL)

    def _end_child(self, now: float, grace_s: float) -> None:
        if self._child and grace_s > 0 and self._kill_at is None:
            processes.send(self._child, signal.SIGTERM)
        self._kill_at = min(now + grace_s, self._kill_at or float("inf"))

    def _start(self) -> None:
        try:
            request = parse_record(StartRun, self._pop_request(protocol.HOLD_START))
            task = parse_task(Path(request.task).read_text())
        except Exception as error:
            say(f"a run cannot be started here: {error}")
            return
        self._files_before = self._list_swept()
        self._run_id, self._record_dir = (
            dict(task.node.env)[protocol.RUN_ID],
            Path(request.record_dir),
        )
        self._grace_s, self._kill_at, holder = task.settings.stop_grace_s, None, os.getpid()
        if pid := os.fork():
            self._child = pid
            return
        code = int(ExitCode.AGENT_FAILED)
        try:
            code = self._become(request, holder)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)

    def _become(self, request: StartRun, holder: int) -> int:
        """Goes on as the supervisor of the run's node, in the forked process."""
        os.setsid()
        streams.write_to_file(f"{request.node_dir}/{protocol.CONSOLE_FILE}")
        processes.die_with_parent(holder, signal.SIGTERM)
        for signum in (*signals.ENDING, *signals.FOR_SCRIPTS):
            signal.signal(signum, signal.SIG_DFL)
        signals.forget_supervisor()
        processes.close_all_but(preload.KEPT_FDS)
        before = dict(os.environ)
        environ = {**(before if request.adds_env else {}), **dict(request.env)}
        # The held node's own supervisor acts on it.
        environ.pop(protocol.STOP_FILE, None)
        os.environ.clear()
        os.environ.update(environ)
        if request.cwd:
            os.chdir(request.cwd)
        tempfile.tempdir = None
        pid = os.getpid()
        write_record(Path(request.record_dir), {"pid": pid, "start": start_of(pid)})
        if request.fresh or _of_interpreter(before) != _of_interpreter(environ):
            os.execv(sys.executable, (sys.executable, self._archive, request.task))
        from launcher.agent.node import supervisor

        return supervisor.main([request.task])


def _of_interpreter(env: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if name.startswith(_OF_INTERPRETER)}


def _state_of_packages() -> tuple[float, ...]:
    """A value that changes when a package is installed or removed."""
    changed_at = []
    # Other folders of sys.path hold people's own code, which this process does not import.
    for entry in sys.path:
        if entry.endswith(("/site-packages", "/dist-packages")):
            with contextlib.suppress(OSError):
                changed_at.append(os.stat(entry).st_mtime)
    return tuple(changed_at)
