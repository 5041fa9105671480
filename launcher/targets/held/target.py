"""Runs in a hold whose nodes see this machine's run folders: held nodes fork the run's nodes.

All requests and answers are files in those folders, whatever kind of nodes they are.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.code.archive import unpack
from launcher.contract import protocol, typed
from launcher.contract.agent_settings import AgentSettings
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.hold import START_REQUEST, USER_FILE, StartRun
from launcher.contract.keeper_record import read_record
from launcher.contract.node_plan import Env, NodePlan
from launcher.contract.records import dump_record
from launcher.contract.states import NodeState
from launcher.follow.target import Artifact, Door, NodeObservation, Observation, Target, Traits
from launcher.plan.agent_task import STORE_CANDIDATES
from launcher.plan.launch_plan import LaunchPlan, plan_moved
from launcher.plan.nodes import absolute
from launcher.plan.target_facts import RUN_ID, Folders, MachineFacts, NodeFacts, TargetFacts
from launcher.plan.target_settings import TargetSettings
from launcher.runs.folder import RunFolder, check_folder, make_folders
from launcher.targets.agent_files import env_of, render_agent_files, write_agent_files
from launcher.targets.hold import Hold, check_reach
from launcher.targets.machine import PORTS
from launcher.targets.preflight import check_in_code, read_secrets
from launcher.targets.shared_folder import MEET_DIR
from launcher.targets.shell import quote, render_block

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

END_LIMIT_S = 15.0
"""How long a node may take to end beyond its grace."""


@dataclass(frozen=True, kw_only=True)
class HeldSettings(TargetSettings):
    """A run in a hold has no more."""


@dataclass(frozen=True, kw_only=True)
class HeldArtifact(Artifact):
    """A plan as requests to the nodes of a hold."""

    plan: LaunchPlan
    hold: Hold
    requests: tuple[tuple[NodePlan, StartRun], ...]

    def shell(self, *, embed: bool = False) -> str:
        files = render_agent_files(self.plan, tuple(node for node, _ in self.requests))
        folders = (self.plan.checkpoint_dir, *(asked.node_dir for _, asked in self.requests))
        lines = [
            "#!/bin/sh",
            f"# What nodes of {self.hold.run.run_id} are asked, by the launcher that has",
            f"# its file {USER_FILE} locked; the code lies in "
            f"{self.plan.run_dir}/{protocol.CODE_DIR}.",
            render_block(("mkdir", "-p", *folders), head=2),
            *(files.shell_tasks() if files else ()),
        ]
        for node, asked in self.requests:
            path = self.hold.folder(node.node_index).absolute() / START_REQUEST
            lines.append(f"printf %s {quote(dump_record(asked))} >{quote(str(path))}")
        return "\n".join(lines) + "\n"


class HeldTarget(Target):
    """Runs each node as a fork of a held one."""

    name = "held"
    traits = Traits(sends_code=True)

    def __init__(
        self, run_root: Path, open_target: Callable[[str], Target], clock: Clock | None = None
    ) -> None:
        """``open_target`` opens the target of the hold itself, by name."""
        super().__init__()
        self._run_root, self._open_target = run_root, open_target
        self._clock = clock or SystemClock()
        self.hold: Hold | None = None
        self._started: dict[tuple[str, int, int], Path] = {}
        """The folder of the held node, by run, node and incarnation."""

    def _hold_of(self, plan: LaunchPlan) -> Hold:
        if self.hold is None:
            return Hold(RunFolder(self._run_root / HeldSettings.of(plan).hold))
        return self.hold

    # -- before a run -----------------------------------------------------------------------------

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: from what the nodes say of themselves, and from the hold's plan."""
        if self.hold is None:
            what = "that run was in a hold; name the hold to use now"
            raise InputError(what, "--in NAME, or --on TARGET to run elsewhere")
        hold, cwd = self.hold, str(Path.cwd())
        plan, root = hold.plan, str(self._run_root.absolute())
        check_reach(job, plan, root, cwd)
        run, given = f"{root}/{RUN_ID}", job.checkpoint_dir
        folders = Folders(
            run=run,
            checkpoints=absolute(given, cwd) if given else f"{run}/{protocol.CHECKPOINTS_DIR}",
            cwd=cwd,
            code=f"{run}/{protocol.CODE_DIR}" if self.code is not None else "",
            # Containers see these folders under their own names.
            in_container=True,
        )
        is_on_gpus, machines = plan.accelerator == "cuda", list[MachineFacts]()
        for node, ready in zip(plan.nodes, hold.wait_ready(), strict=True):
            # A container counts its GPUs from 0; None if a scheduler gives them out.
            ids = tuple(map(str, range(len(node.device_ids)))) or None
            machine = MachineFacts(
                cpu_count=ready.cpu_count,
                device_ids=ids if is_on_gpus else (),
                address=ready.address,
                loopback=None,
            )
            machines.append(machine)
        nodes = (
            NodeFacts(name=node.name, machine=machine, folders=folders)
            for node, machine in zip(plan.nodes, machines, strict=True)
        )
        meets = plan.agent is not None and plan.agent.meet_dir != ""
        return TargetFacts(
            target=self.name,
            place=f"the hold {plan.job_name} on {plan.target}",
            accelerator=plan.accelerator,
            machine=machines[0],
            image=plan.image,
            agent_in_image=True,  # the held node's own
            torch_version=plan.torch_version,
            run_root=root,
            cwd=cwd,
            ports=tuple(random.SystemRandom().sample(PORTS, k=STORE_CANDIDATES)),
            terminal=sys.stderr.isatty(),
            nodes=tuple(nodes)[: job.nnodes.max],
            agent=AgentSettings(
                health_port=None, tee=False, meet_dir=f"{run}/{MEET_DIR}" if meets else ""
            ),
            own=HeldSettings(hold=hold.run.run_id),
        )

    def has_image(self, job: JobSpec) -> bool:
        return self.hold is not None and self.hold.plan.image is not None

    def check(self, plan: LaunchPlan) -> None:
        self._hold_of(plan).enter(plan.run_id)
        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        if self.code is not None:
            check_in_code(self.code)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> HeldArtifact:
        hold = self._hold_of(plan)
        chosen = (node for node in plan.nodes if only is None or node.node_index in only)
        asked = ((node, self._ask(plan, node, hold)) for node in chosen)
        return HeldArtifact(plan=plan, hold=hold, requests=tuple(asked))

    def _ask(self, plan: LaunchPlan, node: NodePlan, hold: Hold, secrets: Env = ()) -> StartRun:
        return StartRun(
            task=f"{node.log_dir}/{protocol.NODE_TASK_FILE}",
            node_dir=node.log_dir,
            record_dir=node.log_dir,
            cwd=node.workdir or "",
            env=(*(env_of(plan, node) if node.device_ids else node.env), *secrets),
            adds_env=True,
            fresh=hold.fresh,
        )

    # -- while it runs ----------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        hold, run_id = self._hold_of(plan), plan.run_id
        secrets = tuple(read_secrets(plan.nodes[0].secrets, os.environ).items())
        hold.enter(run_id)
        there = {n.node_index: hold.read_ready(n.node_index) for n in plan.nodes}
        plan = plan_moved(plan, {index: told.address for index, told in there.items() if told})
        nodes = [node for node in plan.nodes if only is None or node.node_index in only]
        make_folders((plan.run_dir, plan.checkpoint_dir, *(node.log_dir for node in nodes)))
        code = Path(plan.run_dir, protocol.CODE_DIR)
        if self.code is not None and plan.code is not None and not code.exists():
            unpack(self.code.data, code)
        write_agent_files(render_agent_files(plan, tuple(nodes)))
        hold.start({n.node_index: self._ask(plan, n, hold, secrets) for n in nodes})
        for node in nodes:
            key = run_id, node.node_index, node.incarnation
            self._started[key] = hold.folder(node.node_index)

    def observe(self, plan: LaunchPlan) -> Observation:
        hold = self._hold_of(plan)
        hold.touch()
        nodes = tuple(self._observe(hold, plan.run_id, node) for node in plan.nodes)
        return Observation(run_id=plan.run_id, nodes=nodes)

    def _observe(self, hold: Hold, run_id: str, node: NodePlan) -> NodeObservation:
        index, record = node.node_index, read_record(Path(node.log_dir))
        code, state, detail = record.get("exit_code"), NodeState.MISSING, ""
        folder = self._started.get((run_id, index, node.incarnation), hold.folder(index))
        if code is not None:
            state = NodeState.EXITED
        elif not hold.is_alive(index, folder):
            detail = "its node of the hold is gone"
        elif record:
            state = NodeState.RUNNING
        return NodeObservation(
            node_index=index,
            incarnation=node.incarnation,
            state=state,
            exit_code=code,
            detail=detail,
        )

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.stop``: asks the held nodes to end the run's nodes; held nodes stay."""
        run = RunFolder(self._run_root / run_id)
        if not run.is_there():
            return
        plan = run.read_plan()
        hold = self._hold_of(plan)

        def find_live() -> list[int]:
            seen = self.observe(plan).nodes
            live = [node.node_index for node in seen if node.is_alive]
            return [index for index in live if only is None or index in only]

        for index in find_live():
            hold.end(index, run_id, grace_s)
        deadline = self._clock.monotonic() + grace_s + END_LIMIT_S
        while find_live():
            if self._clock.monotonic() > deadline:
                what = f"STILL RUNNING: {run_id}: the nodes of {hold.plan.job_name} do not end it"
                raise TargetError(what, typed.command("stop", hold.plan.job_name))
            self._clock.sleep(0.05)
        if only is None:
            hold.leave()

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        held = self._hold_of(plan).plan
        target = self._open_target(held.target)
        return target.door(target.as_run(held), plan.nodes[node_index].node_index)
