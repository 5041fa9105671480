"""The files that a node's agent starts from, the command that starts it, and whether an image's own
agent is used."""

from __future__ import annotations

import base64
import re
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol, typed
from launcher.contract.errors import KeyInputError
from launcher.contract.node_plan import Env, NodePlan, NodeTask
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.torchrun import as_flags, parse_torch_version, plan_options
from launcher.targets.agent_archive import read_agent_version, read_archive, read_compiled_archive
from launcher.targets.subprocesses.shell import quote, render_line

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

MAKE_ARCHIVE = (
    *(sys.executable or "python3", "-P", "-m"),
    *("launcher.targets.agent_archive", "--compiled"),
)
"""The command that prints the archive. With -P it may be called in any folder."""
MAKE_TOKEN = "umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n'"
"""The command that prints a new token, for a subshell. No word of it is secret."""
OTHER_AGENT_FIX = "build the image again (make image, make push), or --set agent.in_image=false"
OWN_IMAGE = "fabric-train"
"""What ``make image`` of this project's repository builds, tagged ``cpu`` or ``cuda``."""
TORCHRUN_MODULE = ("-m", "torch.distributed.run")
_BASE64_WIDTH = 1000


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """One node's task; ``path`` is on the launcher's machine, or on the node's host."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True)
class AgentFiles:
    """What must be there before an agent can start.

    ``read_archive`` makes the archive, which only a start needs; it is None if the image holds the
    archive. The archive is written once in a run and never replaced, as running agents import
    from it.
    """

    archive_path: str
    read_archive: Callable[[], bytes] | None
    tasks: tuple[TaskFile, ...]

    @property
    def run_dir(self) -> Path:
        """The run's folder on the launcher's machine."""
        return Path(self.archive_path).parent

    @property
    def archive(self) -> bytes | None:
        """The agent; None if the image holds it."""
        return self.read_archive() if self.read_archive else None

    def shell(self, *, embed: bool = False) -> list[str]:
        """Lines for a POSIX shell that write the files; ``embed``: with the archive's bytes."""
        token = render_token(str(self.run_dir / protocol.TOKEN_FILE))
        return [*self.shell_archive(embed=embed), token, *self.shell_tasks()]

    def shell_archive(self, *, embed: bool = False) -> list[str]:
        """Lines that write the archive; without ``embed`` only if it is missing."""
        path = quote(self.archive_path)
        if self.read_archive is None:
            return []
        lines = [f"[ -s {path} ] || {render_line(MAKE_ARCHIVE)} >{path}"]
        if embed:
            lines = [f"base64 -d >{path} <<'END'", *render_base64(), "END"]
        return ["# The node agent: a Python archive.", *lines]

    def shell_tasks(self) -> list[str]:
        """Lines that write each node's task."""
        lines = [
            "# What each node's agent is told. Workers' output:",
            "# nodes/<node>/<incarnation>/attempt-<n>/rank-<rank>/ of the run folder.",
        ]
        for task in self.tasks:
            lines += [f"cat >{quote(task.path)} <<'END'", task.text.rstrip("\n"), "END"]
        return lines


def render_token(path: str) -> str:
    """A line of a shell script that makes a run's token, as ``make_token`` does."""
    return f"[ -s {quote(path)} ] || ({MAKE_TOKEN} >{quote(path)})  # What connections must know."


def render_base64() -> list[str]:
    """The archive as lines of base64, for a script that works without this project."""
    # Without bytecode: a third of the size, and the nodes' Python version is unknown.
    text = base64.b64encode(read_archive()).decode()
    return [text[i : i + _BASE64_WIDTH] for i in range(0, len(text), _BASE64_WIDTH)]


def render_agent_files(plan: LaunchPlan, nodes: tuple[NodePlan, ...]) -> AgentFiles | None:
    """The files of these nodes; None if the plan runs plain torchrun."""
    settings = plan.agent
    if settings is None:
        return None
    return AgentFiles(
        archive_path=f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}",
        read_archive=None if settings.in_image else read_compiled_archive,
        tasks=tuple(
            TaskFile(
                path=f"{folder_of(plan, node)}/{protocol.NODE_TASK_FILE}",
                text=NodeTask(node=node, settings=settings).to_json(),
            )
            for node in nodes
        ),
    )


def write_agent_files(files: AgentFiles | None) -> None:
    """Puts the agent's files in place; the folders must be there."""
    if files is None:
        return
    make_token(files.run_dir)
    archive = Path(files.archive_path)
    if files.read_archive is not None and not archive.exists():
        write_atomically(archive, files.read_archive())
    for task in files.tasks:
        write_atomically(Path(task.path), task.text)


def make_token(run_dir: Path) -> str:
    """The token of the run in this folder, made by the first call. Raises OSError."""
    path = run_dir / protocol.TOKEN_FILE
    if not path.exists():
        write_atomically(path, secrets.token_hex(32), mode=0o600)
    return path.read_text()


def folder_of(plan: LaunchPlan, node: NodePlan) -> str:
    """The node's folder on the launcher's machine."""
    return f"{plan.run_dir}/{protocol.NODES_DIR}/{node.node_index}/{node.incarnation}"


def env_of(plan: LaunchPlan, node: NodePlan) -> Env:
    """The variables of a node that is a process of its machine, with the GPUs that it may use."""
    devices = ("CUDA_VISIBLE_DEVICES", ",".join(node.device_ids))
    return (*node.env, devices) if plan.accelerator == "cuda" else node.env


def start_argv(plan: LaunchPlan, node: NodePlan, python: str, archive: str) -> tuple[str, ...]:
    """The command that starts a node's agent, from ``archive`` as the node sees it, or torchrun."""
    if plan.agent is not None:
        return (python, archive, f"{node.log_dir}/{protocol.NODE_TASK_FILE}")
    options = plan_options(node, parse_torch_version(plan.torch_version), plan.stop_grace_s)
    return (python, *TORCHRUN_MODULE, *as_flags(options), *node.literal_command)


# -- images that hold the agent ------------------------------------------------------------------


def choose_agent(job: JobSpec, image: str, held: str | None) -> tuple[bool, str]:
    """Whether the nodes start the image's own agent, and a note if its version is another.

    ``held`` is the version in the image's label, None without one. Raises ``KeyInputError`` if the
    job wants the image's agent, and its version is not this launcher's.
    """
    ours, wanted = read_agent_version(), job.agent.in_image
    if held == ours or not job.uses_agent:
        return wanted is not False and job.uses_agent, ""
    there = f"agent {held}" if held else "no agent"
    other = f"image {image} holds {there}, the launcher has {ours}"
    if wanted:
        raise KeyInputError(("agent", "in_image"), other, OTHER_AGENT_FIX)
    if held is None or wanted is False:
        return False, ""
    fix = f"to bring both together: make image, or {typed.command('build')}"
    return False, f"{other}: the launcher's is used; {fix}"


def is_own_image(image: str) -> bool:
    """Whether a reference names an image of this project, by its name alone."""
    return re.split("[:@]", image.rpartition("/")[2])[0] == OWN_IMAGE
