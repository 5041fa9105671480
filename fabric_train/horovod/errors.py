"""What Horovod's callers may catch."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: another rank has gone, or asked for something else."""


class HostsUpdatedInterrupt(Exception):  # noqa: N818 (Horovod's name)
    """Nodes are about to join or leave; the state is committed."""
