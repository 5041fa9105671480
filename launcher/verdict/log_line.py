"""One line of a log, with what is known of who wrote it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One telling line. ``number`` counts from 1 and is 0 behind a gap; ``at`` is 0 if not told.

    ``node`` and ``rank`` are those that wrote it. ``raised``: it names a traceback's exception,
    ``frame`` is the innermost place in the user's own code, ``is_own`` whether that raised it.
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
    pod: str = ""
    """The pod that it is about or of, as Kubernetes' own commands name it."""
    host: str = ""
    """The host that wrote it, as the line or the file names it."""
    local_rank: int | None = None
    """By torchrun's prefix, where no rank is told."""
    task: int | None = None
    """By the label of ``srun``: a node, or a rank where each rank is a task."""
    is_inferred: bool = False
    """Its node is by what other lines tell of its rank or host, not by its own file or prefix."""
    joined: bool = False
    """It is so at this moment: the recorders of all ranks say it together, or the kernel."""
