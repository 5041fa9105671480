"""The files that the node agent is started from, and the words that start it.

The run folder holds them: one archive for all nodes of the run, one task in each node's folder.
"""

from __future__ import annotations

import base64
import functools
import os
from dataclasses import dataclass
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.node_plan import NodePlan
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import write_atomically
from launcher.targets.agent_archive import read_agent_sources, render_agent_archive
from launcher.targets.shell import quote

_BASE64_WIDTH = 1000


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """One node's task; ``path`` is on the launcher's machine."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True)
class AgentFiles:
    """What must be there before an agent can start; ``archive`` lies at ``archive_path``.

    The archive is written once in a run and never replaced: running agents import from it.
    """

    archive_path: str
    archive: bytes
    tasks: tuple[TaskFile, ...]

    def shell(self) -> list[str]:
        """Lines that write them, for a POSIX shell."""
        text = base64.b64encode(self.archive).decode()
        lines = [text[i : i + _BASE64_WIDTH] for i in range(0, len(text), _BASE64_WIDTH)]
        return [
            "# The node agent: a Python archive, and what each node's is told. Workers' output:",
            "# nodes/<node>/<incarnation>/attempt-<n>/rank-<rank>/ of the run folder.",
            f"base64 -d >{quote(self.archive_path)} <<'END'",
            *lines,
            "END",
            *(
                line
                for task in self.tasks
                for line in (f"cat >{quote(task.path)} <<'END'", task.text.rstrip("\n"), "END")
            ),
        ]


def render_agent_files(plan: LaunchPlan, nodes: tuple[NodePlan, ...]) -> AgentFiles | None:
    """The files of these nodes; None where the plan runs plain torchrun."""
    settings = plan.agent
    if settings is None:
        return None
    return AgentFiles(
        archive_path=f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}",
        archive=read_archive(),
        tasks=tuple(
            TaskFile(
                path=f"{folder_of(plan, node)}/{protocol.NODE_TASK_FILE}",
                text=NodeTask(node=node, settings=settings).to_json(),
            )
            for node in nodes
        ),
    )


def folder_of(plan: LaunchPlan, node: NodePlan) -> str:
    """What the node leaves, on the launcher's machine."""
    return f"{plan.run_dir}/{protocol.NODES_DIR}/{node.node_index}/{node.incarnation}"


def agent_argv(python: str, archive: str, node: NodePlan) -> tuple[str, ...]:
    """What starts a node's agent; ``archive`` is where the node sees it."""
    return (python, archive, f"{node.log_dir}/{protocol.NODE_TASK_FILE}")


def write_agent_files(files: AgentFiles | None) -> None:
    """Puts the agent's files in place; the folders must be there. None: nothing to do."""
    if files is None:
        return
    archive = Path(files.archive_path)
    if not archive.exists():
        temporary = archive.with_name(f".{archive.name}.{os.getpid()}")
        temporary.write_bytes(files.archive)
        temporary.replace(archive)
    for task in files.tasks:
        write_atomically(Path(task.path), task.text)


@functools.cache
def read_archive() -> bytes:
    """The agent of this version; the package's own sources, which are as constant as its code."""
    return render_agent_archive(read_agent_sources())
