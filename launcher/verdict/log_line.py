"""One line of a log, with what is known of who wrote it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One telling line. ``number`` counts from 1 and is 0 after a gap; ``at`` is 0 if not known.

    ``node`` and ``rank`` wrote the line. ``raised``: it names a traceback's exception; ``frame`` is
    the innermost place in the user's own code, and ``is_own`` whether that place raised it.
    """

    file: str = ""
    number: int = 0
    text: str = ""
    node: int | None = None
    rank: int | None = None
    at: float = 0.0
    frame: str = ""
    is_own: bool = False
    raised: bool = False
    is_side: bool = False
    """It was raised in a thread beside the main one, or where Python ignores exceptions."""
    pod: str = ""
    """The pod that wrote it or that it is about, as Kubernetes' own commands name it."""
    host: str = ""
    """The host that wrote it, as the line or the file names it."""
    local_rank: int | None = None
    """From torchrun's prefix, if the line names no rank."""
    task: int | None = None
    """From the label of ``srun``: a node, or a rank if each rank is a task."""
    is_inferred: bool = False
    """Its node comes from other lines about its rank or host, not from its own file or prefix."""
    joined: bool = False
    """It holds at this moment: the recorders of all ranks together say so, or the kernel."""
