"""The prefix of a line: which node and which worker wrote it, in a colour of its own."""

from __future__ import annotations

WORKER_COLOURS = (36, 33, 35, 32, 34, 31)


def prefix_of(node_index: int, rank: int | None) -> str:
    """``[node/rank]``; the node's agent has no rank."""
    return f"[{node_index}/{'agent' if rank is None else rank}]"


def paint_prefix(prefix: str, colour_key: int) -> str:
    """The prefix in the colour of a rank or a node; bold for the launcher, whose key is -1."""
    code = 1 if colour_key < 0 else WORKER_COLOURS[colour_key % len(WORKER_COLOURS)]
    return f"\x1b[{code}m{prefix}\x1b[0m"
