"""Runs in a hold whose nodes see this machine's run folders.

All requests and answers are files in those folders, whatever kind of nodes they are.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.code.archive import unpack
from launcher.contract import protocol, typed
from launcher.contract.causes import NodeState
from launcher.contract.errors import TargetError
from launcher.contract.hold import StartRun
from launcher.contract.node_plan import AgentSettings, NodePlan
from launcher.contract.records import dump_record
from launcher.contract.waits import wait_until
from launcher.follow.target import (
    Door,
    NodeObservation,
    Observation,
    ScriptArtifact,
    Target,
    Traits,
)
from launcher.plan.agent_task import STORE_CANDIDATES
from launcher.plan.launch_plan import LaunchPlan, plan_moved
from launcher.plan.target_facts import (
    MachineFacts,
    NodeFacts,
    TargetFacts,
    describe_ignored,
    parse_shell,
)
from launcher.runs.folder import RunFolder, check_folder, make_folders
from launcher.targets.agent_files import env_of, render_agent_files, write_agent_files
from launcher.targets.held.child import HeldChild
from launcher.targets.held.hold import Hold, check_reach, ids_in, render_run
from launcher.targets.machine import PORTS
from launcher.targets.preflight import check_here, check_in_code, read_secrets
from launcher.targets.processes import ProcessSettings
from launcher.targets.shared_folder import MEET_DIR, folders_of

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

END_LIMIT_S = 15.0
"""How long a node may take to end beyond its grace."""


@dataclass(frozen=True, kw_only=True)
class HeldSettings(ProcessSettings):
    """``python`` runs the nodes, if they are processes of this machine."""

    python: str = ""


class HeldTarget(Target):
    """Runs each node as a fork of a held one."""

    def __init__(self, hold: Hold, target: Target) -> None:
        """``target`` has started the hold."""
        super().__init__()
        self.name, self.hold, self._target = target.name, hold, target
        self._run_root, self._python = hold.run.path.parent, hold.python
        # Processes of this machine use the code itself, as they do without a hold.
        self.traits = Traits(sends_code=not self._python, takes_shell=bool(self._python))
        self._children: dict[tuple[str, int, int], HeldChild] = {}
        """By run, node and incarnation."""

    # -- before a run -----------------------------------------------------------------------------

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: from what the nodes say of themselves, and from the hold's plan."""
        hold, cwd = self.hold, str(Path.cwd())
        plan, root = hold.plan, str(self._run_root.absolute())
        check_reach(job, plan, root, cwd)
        folders = folders_of(job, root, cwd, sends_code=self.code is not None)
        is_on_gpus = plan.accelerator == "cuda" and not job.is_on_cpu
        nodes, is_here = list[NodeFacts](), self._python != ""
        for node, ready in zip(plan.nodes, hold.wait_ready(), strict=True):
            machine = MachineFacts(
                cpu_count=ready.cpu_count,
                # None if a scheduler gives them out.
                device_ids=(ids_in(plan, node) or None) if is_on_gpus else (),
                address=ready.address,
                loopback=MachineFacts.loopback if is_here else None,
            )
            there = None if is_here else folders
            nodes.append(NodeFacts(name=node.name, machine=machine, folders=there))
        meets = plan.agent is not None and plan.agent.meet_dir != ""
        if is_here:
            self.notes += filter(None, (describe_ignored(os.environ),))
        assert nodes[0].machine is not None
        return TargetFacts(
            target=self.name,
            place=f"the hold {plan.job_name} on {plan.target}",
            accelerator="cuda" if is_on_gpus else "cpu",
            machine=nodes[0].machine,
            image=plan.image,
            agent_in_image=True,  # the held node's own
            torch_version=plan.torch_version,
            run_root=root,
            cwd=cwd,
            ports=tuple(random.SystemRandom().sample(PORTS, k=STORE_CANDIDATES)),
            terminal=sys.stderr.isatty(),
            nodes=tuple(nodes)[: job.nnodes.max],
            shell=parse_shell(os.environ) if is_here else (),
            agent=AgentSettings(
                health_port=None, tee=False, meet_dir=f"{folders.run}/{MEET_DIR}" if meets else ""
            ),
            own=HeldSettings(hold=hold.run.run_id, python=self._python),
        )

    def has_image(self, job: JobSpec) -> bool:
        return self.hold.plan.image is not None

    def check(self, plan: LaunchPlan) -> None:
        self.hold.enter(plan.run_id)
        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        if self._python:
            check_here(plan.nodes[0])
        elif self.code is not None:
            check_in_code(self.code)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ScriptArtifact:
        return render_run(plan)

    # -- while it runs ----------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        hold, run_id = self.hold, plan.run_id
        given = read_secrets(plan.nodes[0].secrets, os.environ)
        if self._python:
            given = {k: v for k, v in os.environ.items() if k not in protocol.STALE_VARIABLES}
        hold.enter(run_id)
        there = {n.node_index: hold.read_ready(n.node_index) for n in plan.nodes}
        plan = plan_moved(plan, {index: ready.address for index, ready in there.items() if ready})
        nodes = [node for node in plan.nodes if only is None or node.node_index in only]
        make_folders((plan.run_dir, plan.checkpoint_dir, *(node.log_dir for node in nodes)))
        code = Path(plan.run_dir, protocol.CODE_DIR)
        if self.code is not None and plan.code is not None and not code.exists():
            unpack(self.code.data, code)
        write_agent_files(render_agent_files(plan, tuple(nodes)))
        for node in nodes:
            request = StartRun(
                task=f"{node.log_dir}/{protocol.NODE_TASK_FILE}",
                node_dir=node.log_dir,
                record_dir=node.log_dir,
                cwd=node.workdir or "",
                env=(*given.items(), *(env_of(plan, node) if node.device_ids else node.env)),
                adds_env=not self._python,
                fresh=hold.fresh,
            )
            self._child(run_id, node).ask(dump_record(request))

    def _child(self, run_id: str, node: NodePlan) -> HeldChild:
        """The run's node, which this launcher or another one has asked for."""
        index, folder = node.node_index, Path(node.log_dir)
        key = run_id, index, node.incarnation
        if key not in self._children:
            self._children[key] = HeldChild(self.hold.run.path, index, folder)
        return self._children[key]

    def observe(self, plan: LaunchPlan) -> Observation:
        self.hold.touch()
        nodes = tuple(self._observe(plan.run_id, node) for node in plan.nodes)
        return Observation(run_id=plan.run_id, nodes=nodes)

    def _observe(self, run_id: str, node: NodePlan) -> NodeObservation:
        child = self._child(run_id, node)
        code = child.poll()
        state = NodeState.RUNNING if code is None else NodeState.EXITED
        return NodeObservation(
            node_index=node.node_index,
            incarnation=node.incarnation,
            state=NodeState.MISSING if child.why else state,
            exit_code=None if child.why else code,
            detail=child.why,
        )

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.stop``: asks the held nodes to end the run's nodes; held nodes stay."""
        run = RunFolder(self._run_root / run_id)
        if not run.is_there():
            return
        plan, hold = run.read_plan(), self.hold

        def find_live() -> list[NodePlan]:
            live = {node.node_index for node in self.observe(plan).nodes if node.is_alive}
            wanted = live if only is None else live.intersection(only)
            return [node for node in plan.nodes if node.node_index in wanted]

        for node in find_live():
            self._child(run_id, node).end(run_id, grace_s)
        if not wait_until(lambda: not find_live(), grace_s + END_LIMIT_S, 0.05):
            what = f"STILL RUNNING: {run_id}: the nodes of {plan.place} do not end it"
            raise TargetError(what, typed.command("stop", plan.hold))
        if only is None:
            hold.leave()

    def tell_closed(self) -> str:
        return self.hold.tell_ended()

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        held = self._target.as_run(self.hold.plan)
        return self._target.door(held, plan.nodes[node_index].node_index)
