"""Which nodes of a run ended without a word, though nobody watches them.

Only times of the file system that all nodes share are compared: clocks of machines differ.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from launcher.contract import protocol
from launcher.runs.folder import RunFolder
from launcher.targets.shared_folder import changed_at

LEFT_BEHIND_S = 60.0
"""A node without an outcome counts as alive for so long after the last of the others has ended."""
SILENT_S = 60.0
"""A node whose last sign of life is older than this may have ended. Agents show one every
``ALIVE_S``, and clients of network file systems may see it up to a minute late."""


def find_left_behind(
    run: RunFolder, without_outcome: Mapping[int, int], ended: Mapping[int, int], grace_s: float
) -> frozenset[int]:
    """Those nodes ``without_outcome`` that have ended: the others ended long ago, and these are
    silent.

    Both arguments give the incarnation of each node. Outcomes of an earlier start of the run do not
    count as ends, since the nodes of the new one may still be on their way.
    """
    newest = max((*without_outcome.values(), *ended.values()), default=0)
    ends = [
        changed_at(run.node_dir(index, incarnation) / protocol.OUTCOME_FILE)
        for index, incarnation in ended.items()
        if incarnation == newest
    ]
    if not ends or not without_outcome or (now := _read_now(run.path)) is None:
        return frozenset()
    if now - max(ends) <= grace_s + LEFT_BEHIND_S:
        return frozenset()
    return frozenset(
        index
        for index, incarnation in without_outcome.items()
        if now - _last_sign(run.node_dir(index, incarnation)) > SILENT_S
    )


def _last_sign(node_dir: Path) -> float:
    """When the node last showed life; before its agent runs, when its folder was made."""
    alive = changed_at(node_dir / protocol.ALIVE_FILE)
    return alive if alive > float("-inf") else changed_at(node_dir)


def _read_now(folder: Path) -> float | None:
    """The file system's own time; None where this process may not write there."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime
    return None
