"""Asks a held node of this host to fork a run's node, and follows the forked node."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol
from launcher.contract.keeper_record import RECORD, read_record
from launcher.targets.hosts.program.node_state import read_state
from launcher.targets.hosts.program.wire import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.targets.hosts.program.messages import KeeperSpec

TAKEN_LIMIT_S = 120.0
"""How long the start may take: if packages have changed, torch is imported first."""
SHOWN_S = 1.0
KILLED = 137


class HeldChild:
    """The forked node, as its keeper sees it; it is no child of this process."""

    def __init__(self, spec: KeeperSpec, env: Mapping[str, str]) -> None:
        assert spec.held is not None
        self._run_id, run = spec.run_id, Path(spec.held.run_dir)
        self._user, folder = (
            run / protocol.HOLD_USER,
            run / f"{protocol.NODES_DIR}/{spec.node_index}",
        )
        self._limit_at, self._show_at = time.monotonic() + TAKEN_LIMIT_S, 0.0
        self.why = ""
        names: list[str] = []
        # If the hold has ended, the folder is gone: the first ``poll`` finds that.
        with suppress(FileNotFoundError):
            names = os.listdir(folder)
        newest = max(filter(str.isdigit, names), key=int, default="0")
        self._of_held = folder / newest
        asked = json.loads(spec.held.request)
        # A container has an environment of its own, and pids that say nothing here.
        given = {**spec.env, **spec.secrets} if asked.get("adds_env") else env
        asked["env"], self._record_dir = list(given.items()), Path(asked["record_dir"])
        self._record_dir.mkdir(exist_ok=True)
        (self._record_dir / RECORD).unlink(missing_ok=True)
        _write(self._user, spec.held.user)
        _write(self._of_held / protocol.HOLD_START, json.dumps(asked))

    def poll(self) -> int | None:
        """Its exit code as in a shell; None while it runs, or is about to."""
        if (now := time.monotonic()) > self._show_at:
            self._show_at = now + SHOWN_S
            with suppress(OSError):
                os.utime(self._user)
        record = read_record(self._record_dir)
        if "exit_code" in record:
            # Written by the held node, whose child it was.
            return int(record["exit_code"])
        request = self._of_held / protocol.HOLD_START
        # A held node that is a container's first process has no keeper: this process ends with it.
        is_kept = bool(read_record(self._of_held))
        is_alive = not is_kept or read_state(self._of_held).state == "running"
        is_there = self._of_held.is_dir() and is_alive
        if is_there and (record or now < self._limit_at):
            return None
        request.unlink(missing_ok=True)
        self.why = f"its node of the hold {'does not answer' if is_there else 'has ended'}"
        return KILLED

    def end(self, grace_s: float) -> None:
        """Has the node ended, by force after the grace; if it has not begun, it will not."""
        self._limit_at = 0.0
        told = json.dumps({"run_id": self._run_id, "grace_s": grace_s})
        _write(self._of_held / protocol.HOLD_END, told)


def _write(path: Path, text: str) -> None:
    # If the hold has ended, the folder is gone. A request has secrets.
    with suppress(FileNotFoundError):
        write_atomically(path, text, 0o600)
