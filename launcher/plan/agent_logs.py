"""The node agent's log layout: ``nodes/<index>/<incarnation>/attempt-<n>/rank-<rank>``."""

from __future__ import annotations

import re

from launcher.contract import protocol
from launcher.plan.torchrun import WorkerLog

FOLDERS = "/".join(
    ("*", "*", protocol.ATTEMPT_FOLDER.format(attempt="*"), protocol.RANK_FOLDER.format(rank="*"))
)
"""A glob for the workers' folders, beneath the folder of all nodes."""

_FOLDER = re.compile(
    rf"{protocol.NODES_DIR}/(?P<node_index>\d+)/(?P<incarnation>\d+)/"
    rf"{protocol.ATTEMPT_FOLDER.format(attempt=r'(?P<attempt>[0-9]+)')}/"
    rf"{protocol.RANK_FOLDER.format(rank=r'(?P<rank>[0-9]+)')}"
)


def parse_agent_folder(path: str) -> WorkerLog | None:
    """Reads the log folder of one of the agent's workers; None for any other path."""
    match = _FOLDER.fullmatch(path)
    if match is None:
        return None
    return WorkerLog(folder=path, **{key: int(value) for key, value in match.groupdict().items()})
