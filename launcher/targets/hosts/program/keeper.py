"""Keeps one node: starts it, renews or watches its lease, ends it, and records how it ended.

A process of its own, which outlives the session that started it. A followed run's lease is renewed
by its launcher, and the node ends when the lease expires. The keeper renews the lease of a detached
run.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.keeper_record import RECORD, read_record, write_record
from launcher.contract.process_stat import start_of
from launcher.targets.hosts.program import processes
from launcher.targets.hosts.program.leases import LeaseBook
from launcher.targets.hosts.program.messages import KeeperSpec, NodeSeen
from launcher.targets.hosts.program.records import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from types import FrameType

POLL_S = 0.05
RENEW_S = 2.0
DETACHED_TTL_S = 20.0
LOST_GRACE_S = 5.0
"""The stop grace of a node whose launcher is gone."""
SWEEP_LIMIT_S = 5.0
SETUP_FAILED = 126
FULL_BYTES = 1 << 20
GRACE_FILE = "stop-grace"
"""Seconds, written by a request to stop that has its own grace."""


def keep(spec: KeeperSpec) -> None:
    """Blocks until the node has ended and none of its processes is left."""
    keeper = _Keeper(spec)
    signal.signal(signal.SIGTERM, keeper.on_sigterm)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    keeper.run()


class _Keeper:
    def __init__(self, spec: KeeperSpec) -> None:
        self._spec = spec
        self._run_id, self._node = spec.run_id, (spec.node_index,)
        self._folder = Path(spec.node_dir)
        self._book = LeaseBook(spec.lease_dir)
        self._asked = False
        self._why = ""
        self._kill_at: float | None = None
        self._renewed_at = float("-inf")

    def on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._asked = True

    def run(self) -> None:
        record_process(self._folder, os.getpid())
        try:
            code = self._follow(self._spec)
        except OSError as error:
            self._close(SETUP_FAILED, f"cannot start {self._spec.argv[0]}: {error.strerror}")
            return
        if code != 0 and not self._why:
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize < FULL_BYTES:
                # The program had no room to say so itself.
                self._why = f"{os.strerror(errno.ENOSPC)}: {self._folder}"
        found = inspect(self._spec.container) if self._spec.container else None
        if found is None:
            self._close(code, self._why)
        else:
            self._close(code, found.error or self._why, out_of_memory=found.out_of_memory)

    def _follow(self, spec: KeeperSpec) -> int:
        """Runs the program, and returns its exit code as in a shell."""
        unset = (processes.KEEPER, *spec.unset)
        inherited = {k: v for k, v in os.environ.items() if k not in unset}
        env = {**inherited, **spec.env, **spec.secrets}
        console = self._folder / protocol.CONSOLE_FILE
        child = processes.start_child(spec.argv, spec.cwd, env, console)
        while (code := child.poll()) is None:
            self._turn(child)
            time.sleep(POLL_S)
        return 128 - code if code < 0 else code

    def _turn(self, child: processes.Child) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            if grace_s := self._grace_s(now):
                self._kill_at = now + grace_s
                self._ask_to_end(child)
        elif now > self._kill_at:
            self._sweep()
        elif now - self._renewed_at > RENEW_S:
            # Keep renewing the lease while stopping: the GPUs are not free until the process exits.
            self._renewed_at = now
            self._renew()

    def _ask_to_end(self, child: processes.Child) -> None:
        # Only to the agent, which ends its workers: it would report a worker that gets a signal
        # from elsewhere as failed.
        processes.send((child.pid,), signal.SIGTERM)
        processes.send((child.pid,), signal.SIGCONT)

    def _grace_s(self, now: float) -> float:
        """The grace once the node is to end; 0 before that."""
        if self._asked:
            with suppress(OSError, ValueError):
                return max(0.01, float((self._folder / GRACE_FILE).read_text()))
            return max(0.01, self._spec.stop_grace_s)
        if now - self._renewed_at > (RENEW_S if self._spec.detached else 0.25):
            self._renewed_at = now
            if self._spec.detached:
                self._renew()
            left_s = self._book.seconds_left(self._run_id, self._spec.node_index)
            if left_s is None or left_s <= 0:
                self._why = protocol.LAUNCHER_GONE
                return LOST_GRACE_S
        return 0.0

    def _renew(self) -> None:
        self._book.renew(self._run_id, DETACHED_TTL_S, self._node)

    def _sweep(self) -> None:
        if self._spec.container:
            remove_container(self._spec.container)
        processes.send(processes.find(self._run_id, self._node), signal.SIGKILL)

    def _close(self, code: int, detail: str, *, out_of_memory: bool = False) -> None:
        deadline = time.monotonic() + SWEEP_LIMIT_S
        self._sweep()
        while processes.find(self._run_id, self._node) and time.monotonic() < deadline:
            self._sweep()
            time.sleep(0.02)
        self._book.release(self._run_id, self._node)
        record_process(
            self._folder, os.getpid(), exit_code=code, detail=detail, out_of_memory=out_of_memory
        )


def record_process(folder: Path, pid: int, **ending: object) -> None:
    """Writes the record of a keeper, with the node's ``ending`` once it has ended."""
    write_record(folder, {"pid": pid, "start": start_of(pid), **ending})


def read_state(folder: Path) -> NodeSeen:
    """How a node is, from its keeper's record."""
    record = read_record(folder)
    if not record:
        return NodeSeen(state="missing")
    if "exit_code" in record:
        return NodeSeen.from_json({"state": "exited", **record})
    if start_of(record["pid"]) == record["start"]:
        # A stopped keeper neither notices its node's end nor renews the lease: continue it.
        processes.wake(record["pid"])
        return NodeSeen(state="running")
    return NodeSeen(state="missing")


# -- starting a keeper --------------------------------------------------------------------------


def start(spec: KeeperSpec, program: str) -> None:
    """Starts a node's keeper with ``program``, and records its process."""
    env = {
        **os.environ,
        protocol.RUN_ID: spec.run_id,
        protocol.NODE_INDEX: str(spec.node_index),
        processes.KEEPER: "1",
    }
    folder = Path(spec.node_dir)
    for stale in (RECORD, GRACE_FILE):
        (folder / stale).unlink(missing_ok=True)
    argv = (sys.executable, "-S", program, "keep")
    pid = processes.start_keeper(argv, env, spec.to_json().encode(), folder / "keeper.log")
    # The keeper writes this too, but later: until then the node would count as lost.
    record_process(folder, pid)


# -- containers ------------------------------------------------------------------------------------


class ContainerState(Record):
    """A container's state in its engine."""

    is_there: bool
    is_running: bool = False
    out_of_memory: bool = False
    error: str = ""


def inspect(name: str) -> ContainerState | None:
    """A container's state; None where the engine does not answer."""
    fields = "{{.State.Running}} {{.State.OOMKilled}} {{.State.Error}}"
    argv = ("docker", "inspect", "--format", fields, name)
    if (text := processes.read_output(argv)) is None:
        if processes.read_output(("docker", "version", "--format", "{{.Server.Version}}")) is None:
            return None
        # The engine may have started between the two commands: ask once more.
        if (text := processes.read_output(argv)) is None:
            return ContainerState(is_there=False)
    running, oom, error = text.strip("\n").split(" ", 2)
    return ContainerState(
        is_there=True,
        is_running=running == "true",
        out_of_memory=oom == "true",
        error=error.strip(),
    )


def remove_container(name: str) -> None:
    """Removes a container by its name. Idempotent."""
    processes.read_output(("docker", "rm", "--force", "--volumes", name))
