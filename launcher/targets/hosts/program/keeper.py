"""Keeps one node: starts it, renews or watches its lease, ends it, and writes down how it ended.

A process of its own on the host, which outlives the session that started it. A run that somebody
follows has a lease which the follower renews: no launcher, no lease, no run. A detached run's
lease is renewed here. Where Docker's restart policy brings a node back, the keeper goes on with it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from launcher.contract import protocol
from launcher.contract.keeper_record import read_record, write_record
from launcher.targets.hosts.program import commands, processes
from launcher.targets.hosts.program.leases import LeaseBook

SPEC = "keeper-spec.json"
"""Beside the record, of a node that Docker brings back: what its next keeper is started with."""
OF_THE_KEEPER = ("pid", "start", "waits_since", "gone")
POLL_S = 0.05
ENGINE_POLL_S = 0.5
MAX_COMEBACKS = 16
"""As often as a launcher replaces a node: one that always dies again must end one day."""
BACK_LIMIT_S = 600.0
"""How long an engine may be away, or a container down, before its node counts as gone."""
RENEW_S = 2.0
DETACHED_TTL_S = 20.0
LOST_GRACE_S = 5.0
"""What a node gets whose launcher is gone; nobody waits for its last checkpoint any more."""
SWEEP_LIMIT_S = 5.0
SETUP_FAILED = 126
FULL_BYTES = 1 << 20

Spec = dict[str, Any]
"""What ``render_hosts`` makes for a node, and the values of its secrets."""


def keep(spec: Spec) -> None:
    """Blocks until the node has ended and nothing of it is left."""
    keeper = _Keeper(spec)
    signal.signal(signal.SIGTERM, keeper.on_sigterm)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    keeper.run()


class _Keeper:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._folder = Path(spec["node_dir"])
        self._book = LeaseBook(spec["lease_dir"])
        self._asked = False
        self._why = ""
        self._kill_at: float | None = None
        self._renewed_at = float("-inf")

    def on_sigterm(self, signum: int, frame: Any) -> None:
        self._asked = True

    def run(self) -> None:
        self._record = {"pid": os.getpid(), "start": processes.start_of(os.getpid())}
        write_record(self._folder, self._record)
        try:
            code, left = self._follow(self._spec), MAX_COMEBACKS
            while left > 0 and self._may_come_back():
                code, left = self._follow(attached(self._spec)), left - 1
        except OSError as error:
            detail = f"cannot start {self._spec['argv'][0]}: {error.strerror}"
            self._close({**self._record, "exit_code": SETUP_FAILED, "detail": detail})
            return
        if code != 0 and not self._why:
            self._why = describe_full_disk(self._folder)
        ending = {"exit_code": code, "detail": self._why}
        self._close({**self._record, **ending, **self._ending()})

    def _follow(self, spec: Spec) -> int:
        """The exit code of the program, which runs until it ends or is ended."""
        console = self._folder / protocol.CONSOLE_FILE
        child = commands.Child(spec["argv"], spec["cwd"], self._env(), console)
        while (code := child.exit_code()) is None:
            self._turn(child)
            time.sleep(POLL_S)
        return code

    def _may_come_back(self) -> bool:
        """Waits until Docker has brought the container back; False where the node has ended."""
        if not self._spec["comes_back"] or has_ended_by_itself(self._folder):
            return False
        name = self._spec["container"]
        deadline = time.monotonic() + BACK_LIMIT_S
        while self._kill_at is None and time.monotonic() < deadline:
            self._turn(None)
            found = inspect(name)
            if found is not None and (found.is_running or found.out_of_memory):
                return found.is_running
            if found is not None and not found.is_there:
                return False
            time.sleep(ENGINE_POLL_S)
        return False

    def _env(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if k != processes.KEEPER}
        for name in self._spec["unset"]:
            inherited.pop(name, None)
        return {**inherited, **self._spec["env"], **self._spec["secrets"]}

    def _turn(self, child: commands.Child | None) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            if grace_s := self._grace_s(now):
                self._kill_at = now + grace_s
                self._ask_to_end(child)
        elif now > self._kill_at:
            self._sweep()
        elif now - self._renewed_at > RENEW_S:
            # The launcher that ends it may beat no more: what it holds is not free before its end.
            self._renewed_at = now
            self._renew()

    def _ask_to_end(self, child: commands.Child | None) -> None:
        # To the agent alone: it ends its workers, and would report a worker that got a signal of
        # its own as failed.
        if self._spec["comes_back"]:
            commands.read_output(("docker", "kill", "--signal", "TERM", self._spec["container"]))
        elif child is not None:
            processes.send((child.pid,), signal.SIGTERM)
            processes.send((child.pid,), signal.SIGCONT)

    def _grace_s(self, now: float) -> float:
        """Seconds for an orderly end where it is time to end, else 0."""
        if self._asked:
            if self._spec["comes_back"] and not (self._folder / GRACE_FILE).exists():
                # Nobody asked for the run's end: the host itself is going down.
                os._exit(0)
            return max(0.01, read_grace_s(self._folder, self._spec["stop_grace_s"]))
        if now - self._renewed_at > (RENEW_S if self._spec["detached"] else 0.25):
            self._renewed_at = now
            if self._spec["detached"]:
                self._renew()
            left_s = self._book.seconds_left(self._spec["run_id"], self._spec["node_index"])
            if left_s is None or left_s <= 0:
                self._why = protocol.LAUNCHER_GONE
                return LOST_GRACE_S
        return 0.0

    def _renew(self) -> None:
        self._book.renew(self._spec["run_id"], DETACHED_TTL_S, (self._spec["node_index"],))

    def _ending(self) -> dict[str, Any]:
        name = self._spec.get("container")
        found = inspect(name) if name else None
        if found is None:
            return {}
        return {"out_of_memory": found.out_of_memory, "detail": found.error or self._why}

    def _sweep(self) -> None:
        run_id, node_index = self._spec["run_id"], self._spec["node_index"]
        if name := self._spec.get("container"):
            remove_container(name)
        processes.end(processes.find(run_id, (node_index,)))

    def _close(self, record: dict[str, Any]) -> None:
        run_id, node_index = self._spec["run_id"], self._spec["node_index"]
        deadline = time.monotonic() + SWEEP_LIMIT_S
        self._sweep()
        while processes.find(run_id, (node_index,)) and time.monotonic() < deadline:
            self._sweep()
            time.sleep(0.02)
        self._book.release(run_id, (node_index,))
        write_record(self._folder, record)


def describe_full_disk(folder: Path) -> str:
    """Of a program that ended badly, and could not write why; empty where there is room."""
    disk = os.statvfs(folder)
    is_full = disk.f_bavail * disk.f_frsize < FULL_BYTES
    return f"{os.strerror(errno.ENOSPC)}: {folder}" if is_full else ""


def read_grace_s(folder: Path, usual_s: float) -> float:
    """What the request to stop gives the node, or else ``usual_s``."""
    with suppress(OSError, ValueError):
        return float((folder / GRACE_FILE).read_text())
    return usual_s


GRACE_FILE = "stop-grace"
"""Seconds, written by a request to stop that has its own grace."""


def write_spec(spec: Spec) -> None:
    """What a later keeper of the same container needs, without the secrets."""
    path = Path(spec["node_dir"]) / SPEC
    path.write_text(json.dumps({**spec, "secrets": {}, "argv": []}))


def attached(spec: Spec) -> Spec:
    """As what runs already, with a keeper that only follows it. Pure."""
    argv = ["docker", "attach", "--no-stdin", "--sig-proxy=false", spec["container"]]
    return {**spec, "argv": argv, "cwd": "/"}


def read_state(folder: Path) -> dict[str, Any]:
    """``state`` (of ``state.NodeState``, as text) with exit_code, out_of_memory and detail."""
    record = read_record(folder)
    if not record:
        return {"state": "missing"}
    if "exit_code" in record:
        return {"state": "exited", **{k: v for k, v in record.items() if k not in OF_THE_KEEPER}}
    if processes.start_of(record["pid"]) == record["start"]:
        # A keeper that was stopped alone would never tell its node's end, nor renew its lease.
        processes.wake(record["pid"])
        return {"state": "running"}
    waits = not record.get("gone") and (folder / SPEC).exists()
    return {"state": "pending" if waits else "missing"}


def has_ended_by_itself(folder: Path) -> bool:
    """Whether the node's agent has reported an end that no signal brought about."""
    with suppress(OSError, ValueError, KeyError):
        outcome = json.loads((folder / protocol.OUTCOME_FILE).read_text())
        return outcome["exit_code"] not in protocol.SIGNAL_CODES
    return False


# -- containers ------------------------------------------------------------------------------------


class ContainerState(NamedTuple):
    """A container as its engine tells it."""

    is_there: bool
    is_running: bool = False
    out_of_memory: bool = False
    error: str = ""


def inspect(name: str) -> ContainerState | None:
    """None where the engine does not answer."""
    fields = "{{.State.Running}} {{.State.OOMKilled}} {{.State.Error}}"
    argv = ("docker", "inspect", "--format", fields, name)
    text = commands.read_output(argv)
    if text is None:
        if commands.read_output(("docker", "version", "--format", "{{.Server.Version}}")) is None:
            return None
        # The engine may have come up between the two: it counts what it says from now on.
        text = commands.read_output(argv)
        if text is None:
            return ContainerState(is_there=False)
    running, oom, error = text.strip("\n").split(" ", 2)
    return ContainerState(True, running == "true", oom == "true", error.strip())


def remove_container(name: str) -> None:
    """Idempotent."""
    commands.read_output(("docker", "rm", "--force", "--volumes", name))
