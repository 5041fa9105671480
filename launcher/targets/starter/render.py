"""Renders a plan whose nodes somebody else starts: what one node's process becomes."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.contract import protocol
from launcher.contract.node_plan import Env, NodePlan
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_files import AgentFiles, render_agent_files, start_argv
from launcher.targets.shell import render_block, render_start
from launcher.targets.starter.plan import StarterSettings


@dataclass(frozen=True, kw_only=True)
class NodeProcess:
    """What the process of a node goes on as; ``env`` is added to its own."""

    node: NodePlan
    argv: tuple[str, ...]
    env: Env
    files: AgentFiles

    @property
    def cwd(self) -> str:
        """The folder in which it goes on."""
        assert self.node.workdir is not None, "the planner gives such nodes a folder"
        return self.node.workdir

    def shell(self, *, embed: bool = False) -> str:
        """Lines that do the same by hand, on the node."""
        lines = [
            "#!/bin/sh",
            f"# Node {self.node.node_index}. The others differ in their index and address.",
            render_block(("unset", *sorted(protocol.STALE_VARIABLES)), per_line=4),
            render_block(("mkdir", "-p", self.node.log_dir), head=2),
            *self.files.shell(embed=embed),
            *render_start(self.cwd, self.env, self.argv),
        ]
        return "\n".join(lines) + "\n"

    def shell_to_join(self) -> str:
        """The same: a node is started where the run's files are."""
        return self.shell()


def render_node(plan: LaunchPlan, node: NodePlan) -> NodeProcess:
    """One node of the plan."""
    files = render_agent_files(plan, (node,))
    assert files is not None, "torchrun is refused before"
    env = node.env
    if node.device_ids:
        env = (*env, ("CUDA_VISIBLE_DEVICES", ",".join(node.device_ids)))
    archive = f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"
    argv = start_argv(plan, node, StarterSettings.of(plan).python, archive)
    return NodeProcess(node=node, argv=argv, env=env, files=files)
