"""The files by which a hold's nodes and its runs communicate; when a run ends whose launcher is
silent, and when a hold warns."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.contract.node_plan import Env

OWNER_FILE = "held-by"
"""In the hold's run folder: USER@MACHINE."""
LEASE_S = 60.0
"""A run whose launcher has been silent for so long is ended."""
READY_SAYS = "ready: "
"""A pod's agent logs this and the same fields, because the launcher does not see its folder."""
RENEW = "packages have changed"
"""The detail with which a held node's agent ends if packages have changed; it is started anew."""
WARN_S = 300.0
"""A held node warns so many seconds before its idle limit."""


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
    """Starts one node of a run: the file of its task, and all else that its process needs.

    ``cwd`` and ``env`` are those of the new process; with ``adds_env``, ``env`` is added to the
    held node's own. With ``fresh`` the process is a new interpreter, not a fork of the one that has
    imported torch. The record has the pids that the held node sees.
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
