"""Sends what a run writes on this host, byte by byte from where the launcher has it, as it comes.

The launcher's heartbeats come the other way; each renews the lease of a run that it follows.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from launcher.contract import protocol
from launcher.targets.hosts.program.frames import ENOUGH, write_frame
from launcher.targets.hosts.program.keeper import read_state
from launcher.targets.hosts.program.leases import LeaseBook

POLL_S = 0.1
BEAT_S = 1.0
SILENCE_LIMIT_S = 30
"""After that much silence of the launcher this session ends: a cut connection may never do."""
FOLLOWED_S = 10.0
"""How long a run counts as followed after its launcher's last beat."""
CHUNK_BYTES = 1 << 17
LEFT_OUT = ("code", protocol.AGENT_ARCHIVE, protocol.CHECKPOINTS_DIR)
"""In the run folder itself; deeper down a folder by such a name is the training's."""
REWRITTEN_BYTES = 1 << 16
"""A file up to this size that changes without growing is sent whole."""


class Watch:
    """One launcher's view of one run on this host.

    ``have`` is the size of each file that the launcher has, by its path in the run folder;
    ``revive`` is called now and then while a node is on its way back.
    """

    def __init__(self, asked: dict[str, Any], out: IO[bytes], revive: Callable[[], None]) -> None:
        self._revive = revive
        self._run_id = asked["run_id"]
        self._run_dir = Path(asked["run_dir"])
        self._nodes = tuple(asked["nodes"])
        self._once, self._follows = asked["once"], asked["follows"]
        self._book = LeaseBook(asked["lease_dir"])
        self._ttl_s = asked["ttl_s"]
        self._out = out
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._sent: dict[str, int] = dict(asked["have"])
        self._states: dict[str, Any] = {}
        self._stdin: int | None = None
        self._goes_on, self._had_enough = True, False

    def run(self, stdin: int) -> bool:
        """Blocks until the launcher has had enough (True), closes its end or falls silent."""
        beat_at = float("-inf")
        if self._once:
            self.send_new()
            self._tell_done()
            return True
        self._stdin = stdin
        signal.alarm(SILENCE_LIMIT_S)
        while self._goes_on:
            self._hear(POLL_S)
            self.send_new()
            if time.monotonic() - beat_at >= BEAT_S:
                beat_at = time.monotonic()
                write_frame(self._out, {"beat": time.time()})
                if any(state["state"] == "pending" for state in self._states.values()):
                    self._revive()
        if self._had_enough:
            self._tell_done()
        return self._had_enough

    def _hear(self, wait_s: float) -> None:
        """Listens to the launcher, also between the parts of a file that takes long to send."""
        if self._stdin is None or not select.select([self._stdin], [], [], wait_s)[0]:
            return
        said = os.read(self._stdin, 4096)
        self._had_enough = ENOUGH in said
        self._goes_on = bool(said) and not self._had_enough
        if not self._goes_on:
            return
        signal.alarm(SILENCE_LIMIT_S)
        if self._follows:
            mark_followed(self._run_dir)
        if self._ttl_s:
            self._book.renew(self._run_id, self._ttl_s, self._nodes)

    def _tell_done(self) -> None:
        write_frame(self._out, {"done": True, "followed": is_followed(self._run_dir)})

    def send_new(self) -> None:
        """Everything that changed since the last call: files first, then how nodes ended."""
        states = {
            f"{index}.{folder.name}": read_state(folder)
            for index in self._nodes
            for folder in (self._run_dir / protocol.NODES_DIR / str(index)).glob("[0-9]*")
        }
        for path in sorted(_files(self._run_dir, LEFT_OUT)):
            is_request = path.parent == self._run_dir and path.name in protocol.RUN_REQUESTS
            with suppress(OSError):
                if self._follows or not is_request:
                    self._send_file(path)
                if not self._goes_on:
                    return
                if self._follows and is_request:
                    path.unlink()
        if states != self._states:
            self._states = states
            write_frame(self._out, {"nodes": states})

    def _send_file(self, path: Path) -> None:
        name = str(path.relative_to(self._run_dir))
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            before = self._seen.get(name)
            if mark == before:
                return
            offset = self._offset(name, before, mark)
            file.seek(offset)
            # Without a byte, a new file and one that was emptied are news too.
            first = self._sent.get(name, -1) not in range(offset + 1)
            while (data := file.read(CHUNK_BYTES)) or first:
                self._hear(0.0)
                if not self._goes_on:
                    return
                told = {"file": name, "offset": offset, "new": offset == 0, "at": stat.st_mtime}
                write_frame(self._out, told, data)
                offset += len(data)
                first = False
        self._seen[name] = mark
        self._sent[name] = offset

    def _offset(
        self, name: str, before: tuple[int, int, int] | None, now: tuple[int, int, int]
    ) -> int:
        """Where the launcher's copy ends, or 0 where the file is another one by now."""
        sent = self._sent.get(name, 0)
        replaced = before is not None and before[0] != now[0]
        rewritten = sent >= now[1] and now[1] <= REWRITTEN_BYTES and before is not None
        unknown = before is None and name.endswith(".json")
        return 0 if replaced or rewritten or unknown or sent > now[1] else sent


def mark_followed(run_dir: Path) -> None:
    """Notes that a launcher has just been heard."""
    path = run_dir / protocol.FOLLOWED_FILE
    with suppress(OSError):
        path.touch()
        now_ns = time.monotonic_ns()
        os.utime(path, ns=(now_ns, now_ns))


def is_followed(run_dir: Path) -> bool:
    """Whether a launcher somewhere follows the run."""
    with suppress(OSError):
        heard_s = (run_dir / protocol.FOLLOWED_FILE).stat().st_mtime_ns / 1e9
        return 0 <= time.monotonic() - heard_s < FOLLOWED_S
    return False


def _files(folder: Path, left_out: tuple[str, ...] = ()) -> list[Path]:
    found: list[Path] = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name in left_out or entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                found += _files(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                found.append(Path(entry.path))
    return found
