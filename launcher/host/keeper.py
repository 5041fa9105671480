"""Keeps one node: starts it, renews or watches its lease, ends it, and writes down how it ended.

A process of its own on the host, which outlives the session that started it. A run that somebody
follows has a lease which the follower renews: no launcher, no lease, no run. A detached run's
lease is renewed here.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher import contract
from launcher.host import commands, processes
from launcher.host.leases import LeaseBook

RECORD = "keeper.json"
"""In the node's folder: pid, start; once it has ended exit_code, out_of_memory, detail."""
POLL_S = 0.05
RENEW_S = 2.0
DETACHED_TTL_S = 20.0
LOST_GRACE_S = 5.0
"""What a node gets whose launcher is gone; nobody waits for its last checkpoint any more."""
SWEEP_LIMIT_S = 5.0
SETUP_FAILED = 126

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
        self._renewed_at = 0.0

    def on_sigterm(self, signum: int, frame: Any) -> None:
        self._asked = True

    def run(self) -> None:
        start = {"pid": os.getpid(), "start": processes.start_of(os.getpid())}
        write_record(self._folder, start)
        try:
            child = commands.Child(
                self._spec["argv"],
                self._spec["cwd"],
                self._env(),
                self._folder / contract.CONSOLE_FILE,
            )
        except OSError as error:
            detail = f"cannot start {self._spec['argv'][0]}: {error.strerror}"
            self._close({**start, "exit_code": SETUP_FAILED, "detail": detail})
            return
        while (code := child.exit_code()) is None:
            self._turn(child)
            time.sleep(POLL_S)
        self._close({**start, "exit_code": code, "detail": self._why, **self._ending()})

    def _env(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if k != processes.KEEPER}
        for name in self._spec["unset"]:
            inherited.pop(name, None)
        return {**inherited, **self._spec["env"], **self._spec["secrets"]}

    def _turn(self, child: commands.Child) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            if grace_s := self._grace_s(now):
                self._kill_at = now + grace_s
                # To the agent alone: it ends its workers, and would report a worker that got a
                # signal of its own as failed.
                processes.send((child.pid,), signal.SIGTERM)
                processes.send((child.pid,), signal.SIGCONT)
        elif now > self._kill_at:
            self._sweep()

    def _grace_s(self, now: float) -> float:
        """Seconds for an orderly end where it is time to end, else 0."""
        if self._asked:
            return max(0.01, read_grace_s(self._folder, self._spec["stop_grace_s"]))
        if now - self._renewed_at > (RENEW_S if self._spec["detached"] else 0.25):
            self._renewed_at = now
            if self._spec["detached"]:
                self._book.renew(self._spec["run_id"], DETACHED_TTL_S, (self._spec["node_index"],))
            left_s = self._book.seconds_left(self._spec["run_id"], self._spec["node_index"])
            if left_s is None or left_s <= 0:
                self._why = contract.LAUNCHER_GONE
                return LOST_GRACE_S
        return 0.0

    def _ending(self) -> dict[str, Any]:
        name = self._spec.get("container")
        if not name:
            return {}
        text = commands.read_output(
            ("docker", "inspect", "--format", "{{.State.OOMKilled}} {{.State.Error}}", name)
        )
        oom, _, error = (text or "false ").strip().partition(" ")
        return {"out_of_memory": oom == "true", "detail": error or self._why}

    def _sweep(self) -> None:
        run_id, node_index = self._spec["run_id"], self._spec["node_index"]
        if name := self._spec.get("container"):
            commands.read_output(("docker", "rm", "--force", "--volumes", name))
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


def read_grace_s(folder: Path, usual_s: float) -> float:
    """What the request to stop gives the node, or else ``usual_s``."""
    with suppress(OSError, ValueError):
        return float((folder / GRACE_FILE).read_text())
    return usual_s


GRACE_FILE = "stop-grace"
"""Seconds, written by a request to stop that has its own grace."""


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Replaces the record; a full disk must not keep a node from ending."""
    with suppress(OSError):
        temporary = folder / f".{RECORD}"
        temporary.write_text(json.dumps(record))
        temporary.replace(folder / RECORD)


def read_state(folder: Path) -> dict[str, Any]:
    """``state`` (of ``state.NodeState``, as text) with exit_code, out_of_memory and detail."""
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return {"state": "missing"}
    if "exit_code" in record:
        record.pop("pid"), record.pop("start")
        return {"state": "exited", **record}
    alive = processes.start_of(record["pid"]) == record["start"]
    return {"state": "running" if alive else "missing"}
