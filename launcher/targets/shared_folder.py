"""Runs whose nodes meet through a shared folder, as their addresses are not known before."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.agent_settings import ROSTER
from launcher.contract.causes import Cause
from launcher.contract.errors import InputError, KeyInputError
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nodes import plan_incarnation
from launcher.runs.folder import RunFolder

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

MEET_DIR = "meet"
"""In the run folder: where nodes that serve the rendezvous store say how they are reached."""
PLACEHOLDER_PORT = 29400
"""Only a placeholder in the plan: nodes take any free port, and publish it in ``MEET_DIR``."""


def check_meeting(job: JobSpec) -> None:
    """Raises ``InputError`` for a job that needs addresses before its nodes start."""
    if not job.uses_agent:
        raise InputError(
            "engine: torchrun, but these nodes learn each other's addresses when they start, and "
            "torchrun must be told before",
            f"remove engine: torchrun, and {protocol.ENGINE} from the environment",
        )
    if job.rdzv.backend not in (None, ROSTER):
        raise KeyInputError(
            ("rdzv", "backend"),
            f"found {job.rdzv.backend}; addresses are not known before the nodes start",
            "leave it out",
        )


def plan_as_run(plan: LaunchPlan) -> LaunchPlan:
    """The plan with the present incarnation of each node, as the nodes' folders tell."""
    newest = dict(RunFolder(Path(plan.run_dir)).incarnations())
    nodes = (plan_incarnation(node, newest.get(node.node_index, 0)) for node in plan.nodes)
    return replace(plan, nodes=tuple(nodes))


def ask_to_stop(path: Path) -> None:
    """Asks the agents whose ``STOP_FILE`` this is to stop; an earlier reason stays.

    The file is there, empty, before they are, and is written in place: nodes may see a new file of
    a network file system a minute late. On a full disk this does nothing.
    """
    with contextlib.suppress(OSError):
        if path.read_text().strip():
            return
    with contextlib.suppress(OSError):
        path.write_text(f"{Cause.STOP_REQUESTED.value}\n")


def changed_at(path: Path) -> float:
    """When the file server saw a file or folder change; -inf where there is none.

    The path is opened, since clients of network file systems then ask the server.
    """
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            return os.fstat(handle).st_mtime
        finally:
            os.close(handle)
    return float("-inf")
