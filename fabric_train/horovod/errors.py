"""What Horovod's callers may catch."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: another rank has gone, or asked for something else."""
