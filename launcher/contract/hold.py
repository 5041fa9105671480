"""What a hold's nodes and the runs in it tell each other, by files of the hold's run folder."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.contract.node_plan import Env

USER_FILE = ".in-use"
"""In the hold's run folder: the fields of ``User`` while a run uses its nodes, else empty. The
run's launcher has it locked, and touches it, at least every ``LEASE_S`` seconds. Hosts have their
own, which keepers touch: files with a dot are not copied from there."""
OWNER_FILE = "held-by"
"""In the hold's run folder: USER@MACHINE."""
LEASE_S = 60.0
"""A run whose launcher has been silent for so long is ended."""
READY_FILE = "ready"
"""In a node's folder once it has imported torch, and takes runs: the fields of ``Ready``. The node
touches it every ``ALIVE_S`` seconds."""
READY_SAYS = "ready: "
"""What the agent of a pod says then, and the same fields: nobody here sees its folder."""
START_REQUEST = ".start-request"
"""In a node's folder: the fields of ``StartRun``. The node removes it, and starts the run's node,
whose record is then in ``record_dir``, and in the end has its exit code."""
END_REQUEST = ".end-request"
"""In a node's folder: the fields of ``EndRun``. The node removes it."""
RENEW = "packages have changed"
"""What a node tells whose torch is not that of the disk any more: it is started anew."""
WARN_S = 300.0
"""So long before the idle limit the node tells of it."""


@dataclass(frozen=True, kw_only=True)
class User:
    """Who runs what in a hold."""

    run_id: str
    owner: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A node that takes runs, as other nodes reach it."""

    address: str
    cpu_count: int


@dataclass(frozen=True, kw_only=True)
class StartRun:
    """One node of a run: the file of its task, and all else that its process is started with.

    Pids in the record are those that the node sees. ``cwd`` and ``env``: as a new process has them;
    ``adds_env``: ``env`` is added to the node's own. ``fresh``: in a new interpreter, not forked
    from the one that has imported torch.
    """

    task: str
    node_dir: str
    record_dir: str
    cwd: str
    env: Env
    adds_env: bool = False
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class EndRun:
    """Ends the run's node, by force after ``grace_s`` seconds."""

    run_id: str
    grace_s: float
