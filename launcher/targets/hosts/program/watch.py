"""Sends what a run writes on this host as it comes, from where the launcher's copy ends; which
files stay here.

Each beat of a launcher that follows the run is recorded, and the run's keepers look for that.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.process_stat import RECORD
from launcher.contract.waits import POLL_S
from launcher.targets.hosts.program.messages import (
    TYPE_CHECKING,
    FilePart,
    NodeSeen,
    NodesSeen,
    write_frame,
)
from launcher.targets.hosts.program.node_state import is_followed, mark_followed, read_state

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

BEAT_S = 1.0
SILENCE_LIMIT_S = 30
"""This session ends after so much silence: a cut connection may never be reported."""
CHUNK_BYTES = 1 << 17
SMALL_BYTES = 1 << 16
"""A file of at most this size that changes without growing is sent whole."""
LEFT_OUT = (
    protocol.CODE_DIR,
    protocol.AGENT_ARCHIVE,
    protocol.CHECKPOINTS_DIR,
    protocol.TOKEN_FILE,
)
"""Only in the run folder itself: below it, folders with such names belong to the training."""


def send_run(
    *, run_dir: str, node: int, have: Mapping[str, int], beside_code_bytes: int
) -> list[Any]:
    """Sends what a run has written here; returns its node's states, and whether a launcher follows.

    Of what the training wrote beside its code it sends at most ``beside_code_bytes``. ``have`` is
    the size of each file that the launcher has, by its path in the run folder.
    """
    watch = Watch(run_dir, node, have, follows=False)
    watch.send_new()
    for path in split_outputs(Path(run_dir, protocol.CODE_DIR), beside_code_bytes)[0]:
        watch.send_file(path)
    return [watch.states, is_followed(Path(run_dir))]


def watch_run(*, run_dir: str, node: int, have: Mapping[str, int], follows: bool) -> NoReturn:
    """Sends what a run writes here as it comes, and its node's states.

    It ends with the conversation. ``follows`` is set by the launcher that drives the run: without
    its beats the node ends.
    """
    Watch(run_dir, node, have, follows=follows).run()
    sys.exit()


class Watch:
    """One launcher's view of one run."""

    def __init__(self, run_dir: str, node: int, have: Mapping[str, int], *, follows: bool) -> None:
        self.states: dict[str, NodeSeen] = {}
        """By ``index.incarnation``."""
        self._run_dir, self._node, self._follows = Path(run_dir), node, follows
        self._out = sys.stdout.buffer
        self._marks: dict[str, tuple[int, int, int]] = {}
        self._sent = dict(have)
        self._stdin: int | None = None
        self._goes_on = True

    def run(self) -> None:
        """Blocks until the launcher, which answers each message, ends the connection."""
        beat_at = float("-inf")
        # Python's own buffer, which select does not see, holds at most beats: others follow.
        self._stdin = sys.stdin.buffer.fileno()
        signal.alarm(SILENCE_LIMIT_S)
        while self._goes_on:
            self._hear(POLL_S)
            before = self.states
            self.send_new()
            if self.states != before or time.monotonic() - beat_at >= BEAT_S:
                beat_at = time.monotonic()
                write_frame(self._out, NodesSeen(nodes=self.states))

    def _hear(self, wait_s: float) -> None:
        """Reads what the launcher says; also called between the parts of a large file."""
        if self._stdin is None or not select.select([self._stdin], [], [], wait_s)[0]:
            return
        # Ended by the kernel, at once: select has said that it is readable.
        self._goes_on = bool(os.read(self._stdin, 4096))
        if not self._goes_on:
            return
        signal.alarm(SILENCE_LIMIT_S)
        if self._follows:
            mark_followed(self._run_dir, self._node)

    def send_new(self) -> None:
        """Sends what has changed in files since the last call, and then sets ``states``.

        So when a node's end is told, all that it wrote has been sent.
        """
        node = self._run_dir / protocol.NODES_DIR / str(self._node)
        # A node that was not started yet has no record.
        started = (record.parent for record in node.glob(f"[0-9]*/{RECORD}"))
        states = {f"{node.name}.{folder.name}": read_state(folder) for folder in started}
        for path in sorted(_files(self._run_dir, LEFT_OUT)):
            is_request = path.parent == self._run_dir and path.name in protocol.RUN_REQUESTS
            with suppress(OSError):
                if self._follows or not is_request:
                    self.send_file(path)
                if not self._goes_on:
                    return
                if self._follows and is_request:
                    path.unlink()
        self.states = states

    def send_file(self, path: Path) -> None:
        """Sends what the launcher does not have of a file."""
        name = str(path.relative_to(self._run_dir))
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            before = self._marks.get(name)
            if mark == before:
                return
            offset = self._offset(name, before, mark)
            file.seek(offset)
            # A new file and one that was emptied are sent although they have no bytes.
            first = self._sent.get(name, -1) not in range(offset + 1)
            while (data := file.read(CHUNK_BYTES)) or first:
                self._hear(0.0)
                if not self._goes_on:
                    return
                part = FilePart(file=name, offset=offset, new=offset == 0, at=stat.st_mtime)
                write_frame(self._out, part, data)
                offset += len(data)
                first = False
        self._marks[name] = mark
        self._sent[name] = offset

    def _offset(
        self, name: str, before: tuple[int, int, int] | None, now: tuple[int, int, int]
    ) -> int:
        """Where the launcher's copy ends; 0 if the file was replaced since."""
        sent = self._sent.get(name, 0)
        replaced = before is not None and before[0] != now[0]
        rewritten = sent >= now[1] and now[1] <= SMALL_BYTES and before is not None
        unknown = before is None and name.endswith(".json")
        return 0 if replaced or rewritten or unknown or sent > now[1] else sent


def split_outputs(code: Path, limit_bytes: int) -> tuple[list[Path], list[Path]]:
    """Files that the training wrote beside the code: those that the launcher gets, and the rest.

    It gets the smallest, less than ``limit_bytes`` in all. The code's own files have the time 0.
    """
    outputs = []
    for folder, folders, names in os.walk(code):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (Path(folder, name) for name in names):
            # Hosts that share a home remove one folder at once.
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_mtime > 0:
                    outputs.append((status.st_size, path))
    brought: list[Path] = []
    left: list[Path] = []
    total = 0
    for size, path in sorted(outputs):
        total += size
        (brought if total < limit_bytes and os.access(path, os.R_OK) else left).append(path)
    return brought, left


def _files(folder: Path, left_out: tuple[str, ...] = ()) -> list[Path]:
    files: list[Path] = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name in left_out or entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                files += _files(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                files.append(Path(entry.path))
    return files
