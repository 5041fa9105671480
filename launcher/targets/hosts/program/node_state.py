"""What the files of a run on this host tell of its nodes, and of the launcher that follows it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.process_stat import lives, read_record
from launcher.targets.hosts.program.messages import FOLLOWED_S, NodeSeen


def read_state(folder: Path) -> NodeSeen:
    """How a node is, from its keeper's record."""
    record = read_record(folder)
    if "exit_code" in record:
        return NodeSeen.from_json({"state": "exited", **record})
    if lives(record):
        return NodeSeen(state="running")
    return NodeSeen(state="missing")


def mark_followed(run_dir: Path, node: int) -> None:
    """Records that the node's launcher was heard now, by the clock since the boot."""
    # In the node's own folder: hosts that share a home have different clocks.
    path = run_dir / protocol.NODES_DIR / str(node) / protocol.FOLLOWED_FILE
    now_ns = time.monotonic_ns()
    with suppress(OSError):
        try:
            os.utime(path, ns=(now_ns, now_ns))
        except FileNotFoundError:
            # The file must never appear with another time: the keeper, which looks 20 times a
            # second, would end the node.
            new = path.with_name(f"{path.name}.new")
            new.touch()
            os.utime(new, ns=(now_ns, now_ns))
            new.replace(path)


def is_followed(run_dir: Path) -> bool:
    """Whether a launcher somewhere follows the run."""
    return any(map(is_node_followed, (run_dir / protocol.NODES_DIR).glob("[0-9]*")))


def is_node_followed(folder: Path, limit_s: float = FOLLOWED_S) -> bool:
    """Whether a launcher was heard within ``limit_s``; ``folder`` has the node's incarnations."""
    with suppress(OSError):
        heard_s = (folder / protocol.FOLLOWED_FILE).stat().st_mtime_ns / 1e9
        return 0 <= time.monotonic() - heard_s < limit_s
    return False
