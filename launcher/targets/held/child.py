"""A run's node that a held node forks, by the files in which both tell of themselves.

It is no child of the process that asks for it: a launcher that sees these files, or a keeper on a
host. Standard library only, and no newer than Python 3.9: hosts import it with a Python of their
own.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol
from launcher.contract.process_stat import RECORD, read_record

TAKEN_LIMIT_S = 120.0
"""How long a node may take to begin: first it may import torch, or end a dead launcher's run."""
SILENT_S = 4 * protocol.ALIVE_S
"""A held node that shows no sign of life for so long is gone."""
KILLED = 137


def find_held(hold_dir: Path, index: int) -> Path:
    """The folder of a held node's newest incarnation."""
    folder, names = hold_dir / protocol.NODES_DIR / str(index), list[str]()
    with suppress(OSError):
        names = os.listdir(folder)
    return folder / max(filter(str.isdigit, names), key=int, default="0")


class HeldChild:
    """The forked node, from the held node that has node ``index`` of the hold at this time.

    The held node writes the record of what it forks into ``record_dir``.
    """

    def __init__(self, hold_dir: Path, index: int, record_dir: Path) -> None:
        self._hold_dir, self._index, self._record_dir = hold_dir, index, record_dir
        self._held = find_held(hold_dir, index)
        self._request, self._limit_at = "", 0.0
        self._sign: float | None = None
        self._sign_seen_at = 0.0
        self.why = ""
        """Why ``poll`` says that it has ended, if it told no exit code itself."""

    def ask(self, request: str) -> None:
        """Asks the held node to start it; an earlier record does not count any more."""
        self._record_dir.mkdir(exist_ok=True)
        (self._record_dir / RECORD).unlink(missing_ok=True)
        write(self._held / protocol.HOLD_START, request)
        self._request, self._limit_at = request, time.monotonic() + TAKEN_LIMIT_S

    def poll(self) -> int | None:
        """Its exit code as in a shell; None while it runs, or is about to."""
        with suppress(OSError):
            os.listdir(self._record_dir)  # clients of network file systems then ask the server
        record, now, self.why = read_record(self._record_dir), time.monotonic(), ""
        if "exit_code" in record:
            # Written by the held node, whose child it was.
            return int(record["exit_code"])
        if not record and now < self._limit_at and self._is_hold():
            # The hold may just be replacing a lost node.
            if (newest := find_held(self._hold_dir, self._index)) != self._held:
                self._held = newest
                write(newest / protocol.HOLD_START, self._request)
            return None
        if (is_there := self._is_held(now)) and record:
            return None
        if self._request:
            # Once: the next request there is another run's.
            self._request = ""
            (self._held / protocol.HOLD_START).unlink(missing_ok=True)
        is_silent = is_there and self._is_hold()
        self.why = f"its node of the hold {'does not answer' if is_silent else 'has ended'}"
        return KILLED

    def _is_hold(self) -> bool:
        """Whether the hold goes on; the program on a host sees only that its folder is there."""
        has_ended = (self._hold_dir / protocol.OUTCOME_FILE).exists()
        return not has_ended and self._held.parent.is_dir()

    def _is_held(self, now: float) -> bool:
        """Whether the held node is still there."""
        if not self._held.is_dir() or self._held != find_held(self._hold_dir, self._index):
            return False
        sign = None
        with suppress(OSError), (self._held / protocol.HOLD_READY).open() as file:
            sign = os.fstat(file.fileno()).st_mtime
        if sign != self._sign:
            self._sign, self._sign_seen_at = sign, now
        is_silent = sign is not None and now - self._sign_seen_at > SILENT_S
        # Its supervisor writes the one at its end, its keeper on a host the other.
        has_ended = (self._held / protocol.OUTCOME_FILE).exists()
        return not (is_silent or has_ended or "exit_code" in read_record(self._held))

    def end(self, run_id: str, grace_s: float) -> None:
        """Has the node ended, by force after the grace; if it has not begun, it will not."""
        self._limit_at = 0.0
        order = json.dumps({"run_id": run_id, "grace_s": grace_s})
        write(self._held / protocol.HOLD_END, order)


def write(path: Path, text: str) -> None:
    """Writes what only the user may read, unless the hold has ended, and its folder is gone."""
    with suppress(FileNotFoundError):
        write_atomically(path, text, 0o600)
