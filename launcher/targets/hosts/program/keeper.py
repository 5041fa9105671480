"""Keeps one node: starts it, renews or watches its lease, ends it, and records how it ended.

A process of its own, which outlives the session that started it. A followed run's lease is renewed
by its launcher, and the node ends when the lease expires. The keeper renews the lease of a detached
run, and follows a container further that Docker's restart policy has started again. If that was
after a reboot of the host, the next session on the host restores keeper and lease (``revive``).
"""

from __future__ import annotations

import errno
import fcntl
import json
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
from launcher.targets.hosts.program.leases import HeldError, LeaseBook
from launcher.targets.hosts.program.messages import KeeperSpec, NodeSeen
from launcher.targets.hosts.program.records import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from types import FrameType

SPEC = "keeper-spec.json"
"""Beside the record of a node that Docker starts again: what its next keeper is started with."""
PENDING_SPECS = f"runs/*/{protocol.NODES_DIR}/[0-9]*/[0-9]*/{SPEC}"
POLL_S = 0.05
ENGINE_POLL_S = 0.5
MAX_COMEBACKS = 16
"""After so many restarts by Docker the node ends."""
BACK_LIMIT_S = 600.0
"""A node counts as gone when its engine or container has been down for so long."""
RENEW_S = 2.0
DETACHED_TTL_S = 20.0
LOST_GRACE_S = 5.0
"""The stop grace of a node whose launcher is gone."""
SWEEP_LIMIT_S = 5.0
SETUP_FAILED = 126
TAKEN_CODE = 137
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
            code, left = self._follow(self._spec), MAX_COMEBACKS
            while left > 0 and self._may_come_back():
                code, left = self._follow(attached(self._spec)), left - 1
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

    def _may_come_back(self) -> bool:
        """Waits until Docker has started the container again; False if the node has ended."""
        if not self._spec.comes_back or has_ended_by_itself(self._folder):
            return False
        deadline = time.monotonic() + BACK_LIMIT_S
        while self._kill_at is None and time.monotonic() < deadline:
            self._turn(None)
            found = inspect(self._spec.container)
            if found is not None and (found.is_running or found.out_of_memory):
                return found.is_running
            if found is not None and not found.is_there:
                return False
            time.sleep(ENGINE_POLL_S)
        return False

    def _turn(self, child: processes.Child | None) -> None:
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

    def _ask_to_end(self, child: processes.Child | None) -> None:
        # Only to the agent, which ends its workers: it would report a worker that gets a signal
        # from elsewhere as failed.
        if self._spec.comes_back:
            processes.read_output(("docker", "kill", "--signal", "TERM", self._spec.container))
        elif child is not None:
            processes.send((child.pid,), signal.SIGTERM)
            processes.send((child.pid,), signal.SIGCONT)

    def _grace_s(self, now: float) -> float:
        """The grace once the node is to end; 0 before that."""
        if self._asked:
            if self._spec.comes_back and not (self._folder / GRACE_FILE).exists():
                # A stop request writes that file: without it, the host itself is shutting down.
                os._exit(0)
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
    waits = not record.get("gone") and (folder / SPEC).exists()
    return NodeSeen(state="pending" if waits else "missing")


def has_ended_by_itself(folder: Path) -> bool:
    """Whether the node's agent has reported its end, and no signal caused it."""
    with suppress(OSError, ValueError, KeyError):
        outcome = json.loads((folder / protocol.OUTCOME_FILE).read_text())
        return outcome["exit_code"] not in protocol.SIGNAL_CODES
    return False


# -- starting a keeper, also after a reboot --------------------------------------------------------


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
    if spec.comes_back:
        write_spec(spec)
    argv = (sys.executable, "-S", program, "keep")
    pid = processes.start_keeper(argv, env, spec.to_json().encode(), folder / "keeper.log")
    # The keeper writes this too, but later: until then the node would count as lost.
    record_process(folder, pid)


def write_spec(spec: KeeperSpec) -> None:
    """Writes what a later keeper of the same container needs, without the secrets."""
    (Path(spec.node_dir) / SPEC).write_text(spec.having(secrets={}, argv=[]).to_json())


def attached(spec: KeeperSpec) -> KeeperSpec:
    """The spec of a keeper that follows the container, which runs already. Pure."""
    argv = ["docker", "attach", "--no-stdin", "--sig-proxy=false", spec.container]
    return spec.having(argv=argv, cwd="/")


def revive(state_dir: Path, program: str) -> None:
    """Restores the keepers that are gone from containers that Docker brought back. Does not wait.

    ``program`` starts a keeper.
    """
    for path in state_dir.glob(PENDING_SPECS):
        if read_state(path.parent).state == "pending":
            with suppress(OSError, ValueError), path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another session may have restored it before this one had the lock.
                if read_state(path.parent).state == "pending":
                    _revive(KeeperSpec.from_json(json.load(file)), program)


def _revive(spec: KeeperSpec, program: str) -> None:
    folder = Path(spec.node_dir)
    found = inspect(spec.container)
    if found is None:
        since = read_record(folder).get("waits_since", time.time())
        _mark(folder, waits_since=since, gone=time.time() - since > BACK_LIMIT_S)
    elif found.is_running:
        try:
            if spec.lease is not None:
                book = LeaseBook(spec.lease_dir)
                book.take(spec.lease, DETACHED_TTL_S, spec.slots_limit)
        except HeldError as error:
            remove_container(spec.container)
            taker = error.leases[0].run_id
            detail = f"while its host was away, {taker} took what it had there"
            _mark(folder, exit_code=TAKEN_CODE, detail=detail)
        else:
            start(attached(spec), program)
    elif not found.is_there:
        _mark(folder, gone=True)


def _mark(folder: Path, **told: object) -> None:
    write_record(folder, {**read_record(folder), **told})


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
