"""Renders a plan as processes of this machine: one agent per node."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.contract import protocol
from launcher.contract.node_plan import Env, NodePlan
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_settings import TargetSettings
from launcher.targets.agent_files import AgentFiles, render_agent_files, start_argv
from launcher.targets.shell import render_block, render_start


@dataclass(frozen=True, kw_only=True)
class LocalSettings(TargetSettings):
    """``python`` is the program that runs the nodes' agents."""

    python: str


@dataclass(frozen=True, kw_only=True)
class Process:
    """One node's agent: what is executed, in which folder, with which variables on top.

    ``unset`` is taken out of the inherited environment first; ``secrets`` stay in it.
    """

    node_index: int
    incarnation: int
    argv: tuple[str, ...]
    cwd: str
    env: Env
    unset: tuple[str, ...]
    secrets: tuple[str, ...]
    log_dir: str

    @property
    def console(self) -> str:
        """The file that takes the agent's own output."""
        return f"{self.log_dir}/{protocol.CONSOLE_FILE}"


@dataclass(frozen=True, kw_only=True)
class LocalArtifact:
    """A plan as local processes; ``agent`` are the files they start from, if they need any."""

    run_id: str
    folders: tuple[str, ...]
    agent: AgentFiles | None
    processes: tuple[Process, ...]

    def shell(self, *, embed: bool = False) -> str:
        """A script that does the same by hand; ``embed``: without this project."""
        folders = (*self.folders, *(process.log_dir for process in self.processes))
        lines = [
            "#!/bin/sh",
            "# One agent per node; ends when all have ended, with the code of one that failed.",
            self._unset(),
            render_block(("mkdir", "-p", *folders), head=2),
            *(self.agent.shell(embed=embed) if self.agent else ()),
            *(line for process in self.processes for line in _subshell(process)),
            "code=0",
            "for pid in $pids; do wait $pid || code=$?; done",
            "exit $code",
        ]
        return "\n".join(lines) + "\n"

    def shell_to_join(self) -> str:
        """Lines that start these nodes alone, where the run's files are there already."""
        starts = (line for process in self.processes for line in _subshell(process))
        return "\n".join([self._unset(), *starts]) + "\n"

    def _unset(self) -> str:
        names = sorted({name for process in self.processes for name in process.unset})
        return render_block(("unset", *names), per_line=4)


def _subshell(process: Process) -> list[str]:
    """One agent in the background, in its folder and with its variables."""
    secrets = f"; takes from this shell: {' '.join(process.secrets)}" if process.secrets else ""
    return [
        f"(  # node {process.node_index}{secrets}",
        *render_start(process.cwd, process.env, process.argv),
        ") &",
        'pids="$pids $!"',
    ]


def render_local(plan: LaunchPlan, only: tuple[int, ...] | None = None) -> LocalArtifact:
    """The plan's nodes (or ``only`` those) as processes."""
    chosen = tuple(node for node in plan.nodes if only is None or node.node_index in only)
    return LocalArtifact(
        run_id=plan.run_id,
        folders=(plan.run_dir, plan.checkpoint_dir),
        agent=render_agent_files(plan, chosen),
        processes=tuple(_process(plan, node) for node in chosen),
    )


def _process(plan: LaunchPlan, node: NodePlan) -> Process:
    devices: Env = (
        (("CUDA_VISIBLE_DEVICES", ",".join(node.device_ids)),) if plan.accelerator == "cuda" else ()
    )
    assert node.workdir is not None, "the planner gives local nodes a folder"
    archive = f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"
    return Process(
        node_index=node.node_index,
        incarnation=node.incarnation,
        argv=start_argv(plan, node, LocalSettings.of(plan).python, archive),
        cwd=node.workdir,
        env=(*node.env, *devices),
        unset=protocol.STALE_VARIABLES,
        secrets=node.secrets,
        log_dir=node.log_dir,
    )
