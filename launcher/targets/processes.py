"""Renders nodes as processes of the machine on which they start: one agent per node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.node_plan import Env, NodePlan
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import MachineFacts, TargetFacts, parse_shell
from launcher.plan.target_settings import TargetSettings
from launcher.targets.agent_files import AgentFiles, env_of, render_agent_files, start_argv
from launcher.targets.interpreter import find_torch
from launcher.targets.machine import PROCESSES_PER_CORE, read_gpus, read_used_gpus
from launcher.targets.subprocesses.shell import render_block, render_start

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(TargetSettings):
    """``python`` is the program that runs the nodes' agents."""

    python: str

    @property
    def own_python(self) -> str:
        return self.python


@dataclass(frozen=True, kw_only=True)
class Process:
    """One node's agent; ``env`` is added to the environment that it inherits."""

    node: NodePlan
    argv: tuple[str, ...]
    env: Env

    @property
    def cwd(self) -> str:
        """The folder in which it is started."""
        assert self.node.workdir is not None, "the planner gives such nodes a folder"
        return self.node.workdir

    @property
    def console(self) -> str:
        """The file that takes the agent's own output."""
        return f"{self.node.log_dir}/{protocol.CONSOLE_FILE}"


@dataclass(frozen=True, kw_only=True)
class ProcessArtifact:
    """A plan as local processes; ``agent`` are the files they start from, if they need any."""

    folders: tuple[str, ...]
    agent: AgentFiles | None
    processes: tuple[Process, ...]

    def shell(self, *, embed: bool = False) -> str:
        """A script that does the same by hand; ``embed``: without this project."""
        lines = [
            "#!/bin/sh",
            "# One agent per node; ends when all have ended, with the code of one that failed.",
            _UNSET,
            render_block(("mkdir", "-p", *self.folders), head=2),
            *(self.agent.shell(embed=embed) if self.agent else ()),
            *self._starts(),
            "code=0",
            "for pid in $pids; do wait $pid || code=$?; done",
            "exit $code",
        ]
        return "\n".join(lines) + "\n"

    def _starts(self) -> Iterator[str]:
        """Each agent in the background, in its folder and with its variables."""
        for process in self.processes:
            secrets = " ".join(process.node.secrets)
            takes = f"; takes from this shell: {secrets}" if secrets else ""
            yield f"(  # node {process.node.node_index}{takes}"
            yield from render_start(process.cwd, process.env, process.argv)
            yield ") &"
            yield 'pids="$pids $!"'


_UNSET = render_block(("unset", *sorted(protocol.STALE_VARIABLES)), per_line=4)


def read_facts(job: JobSpec, target: str, run_root: Path, ports: tuple[int, ...]) -> TargetFacts:
    """The facts of nodes that are processes of this machine. Raises ``TargetError``."""
    python, torch_version = find_torch(job.local.python)
    devices, cores = () if job.is_on_cpu else read_gpus(), len(os.sched_getaffinity(0))
    return TargetFacts(
        target=target,
        accelerator="cuda" if devices else "cpu",
        machine=MachineFacts(
            cpu_count=cores,
            device_ids=devices,
            used_ids=read_used_gpus() if job.devices and job.devices.unused else (),
            most_processes=cores * PROCESSES_PER_CORE,
        ),
        torch_version=torch_version,
        run_root=str(run_root.absolute()),
        cwd=str(Path.cwd()),
        ports=ports,
        shell=parse_shell(os.environ),
        own=ProcessSettings(python=python),
    )


def render_processes(plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ProcessArtifact:
    """The plan's nodes (or ``only`` those) as processes."""
    chosen = tuple(node for node in plan.nodes if only is None or node.node_index in only)
    python = ProcessSettings.of(plan).python
    return ProcessArtifact(
        folders=(plan.run_dir, plan.checkpoint_dir, *(node.log_dir for node in chosen)),
        agent=render_agent_files(plan, chosen),
        processes=tuple(
            Process(
                node=node,
                argv=start_argv(plan, node, python, f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"),
                env=env_of(plan, node),
            )
            for node in chosen
        ),
    )
