"""Runs in a hold of pods, which do not see the run folders of this machine.

Such a run works as on hosts, with ``kubectl exec`` (the target's door) in place of ssh: the host
program runs in each pod.
"""

from __future__ import annotations

import contextlib
import json
import random
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract import protocol, typed
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.hold import READY_FILE, Ready
from launcher.contract.node_plan import NodePlan
from launcher.contract.records import parse_record
from launcher.contract.states import NodeState
from launcher.follow.nodes import AWAY_LIMIT_S
from launcher.follow.target import Door, NodeObservation, Observation, Target
from launcher.plan.launch_plan import LaunchPlan, plan_moved
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder
from launcher.targets.docker_options import plan_containers
from launcher.targets.hold import TAKEN_LIMIT_S, check_contained
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.nodes import key_of
from launcher.targets.hosts.plan import find_caller, plan_facts
from launcher.targets.hosts.program.messages import ReadNewest
from launcher.targets.hosts.render import HostNode, render_hosts
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from launcher.targets.hosts.ssh import Session, Ssh
from launcher.targets.hosts.survey import check_takes_all
from launcher.targets.hosts.target import HostsTarget
from launcher.targets.machine import PORTS

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

FOLLOWED_S = AWAY_LIMIT_S + 30.0
"""A run outlives an API server that is away for as long as its launcher waits for it."""
LOOK_S = 1.0
"""Between two looks at the hold's own nodes."""


class Doors(Ssh):
    """Sessions to a hold's nodes, each to whatever runs as the node at that time."""

    def __init__(self, held: LaunchPlan, target: Target) -> None:
        super().__init__(Inventory(hosts=()))
        self._held, self._target, self._lock = held, target, threading.Lock()
        self._index_of = {node.name: node.node_index for node in held.nodes}

    def door(self, index: int) -> Door:
        """Raises ``TargetError`` if the node does not run."""
        with self._lock:
            return self._target.door(self._held, index)

    def argv(self, host: Host, *, terminal: bool = False) -> tuple[str, ...]:
        return (*self.door(self._index_of[host.name]).words, "sh", "-c")

    def entering(self, host: Host) -> str:
        return typed.command("exec", self._held.run_id, "--node", str(self._index_of[host.name]))

    def fetching(self, host: Host, folder: str) -> str:
        enter = self.door(self._index_of[host.name]).words
        return f"{shlex.join((*enter, 'tar', '-cC', folder, '.'))} | tar -x"

    def observe(self) -> tuple[NodeObservation, ...]:
        """The hold's own nodes. Raises ``TargetError`` if its target cannot be asked."""
        return self._target.observe(self._held).nodes

    def _open(self, host: Host, argv: tuple[str, ...]) -> Session:
        try:
            return super()._open(host, argv)
        except TargetError as error:
            raise TargetError(error.what, f"to try: {self.entering(host)}") from error

    def disconnect(self, host: Host) -> bool:
        """As ``Ssh.disconnect``: no connection is shared here."""
        return False


class EnteredTarget(HostsTarget):
    """Runs each node as a fork of a held one."""

    name = "entered"

    def __init__(self, run_root: Path, open_target: Callable[[str], Target]) -> None:
        """``open_target`` opens the target of the hold itself, by name."""
        super().__init__(run_root)
        self._open_target = open_target
        self._doors: Doors | None = None
        self._addresses: dict[int, str] = {}
        """Where nodes of the hold were found, by index."""
        self._looked_at, self._judged = float("-inf"), dict[int, tuple[NodeState, str]]()
        """When nodes that are not seen were last looked for, and what was found."""

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: from what the nodes say of themselves, and from the hold's plan."""
        if self.hold is None:
            what = "that run was in a hold; name the hold to use now"
            raise InputError(what, "--in NAME, or --on TARGET to run elsewhere")
        plan, cwd = self.hold.plan, Path.cwd()
        check_takes_all(job, plan)
        check_contained(job, plan, str(cwd))
        if job.checkpoint_dir:
            what = f"{job.checkpoint_dir}: nodes of {plan.job_name} see no folders of this machine"
            raise KeyInputError(("checkpoint_dir",), what, "leave it out: the hold has a folder")
        told = zip(plan.nodes, self.hold.wait_ready(), strict=True)
        self._wait_there(plan)
        own = HostsSettings(
            hosts=tuple(_describe(plan, node, ready) for node, ready in told),
            ssh_config=None,
            containers=plan_containers(job, None),
            hold=self.hold.run.run_id,
            followed_s=FOLLOWED_S,
        )
        if self._open_target(plan.target).as_run(plan).checkpoint_dir:
            # All nodes see this folder, and it outlives them. Jobs of one name share it.
            folder = f"{dict(plan.nodes[0].env)[protocol.CHECKPOINT_DIR]}/{job.name}"
            job = job.model_copy(update={"checkpoint_dir": folder})
        facts = plan_facts(
            job,
            own,
            image=None,
            torch_version=plan.torch_version,
            port=random.SystemRandom().choice(PORTS),
            run_root=str(self._run_root.absolute()),
            cwd=str(cwd),
            inner=find_caller(self.code.record, cwd) if self.code else None,
            terminal=sys.stderr.isatty(),
        )
        place = f"the hold {plan.job_name} on {plan.target}"
        machine = replace(facts.machine, loopback=None)
        return replace(facts, target=self.name, place=place, machine=machine)

    def _connect(self, plan: LaunchPlan | None = None) -> Doors:
        if self._doors is None:
            assert plan is not None or self.hold is not None, "asked for a run"
            own = HostsSettings.of(plan).hold if plan else ""
            run = self.hold.run if self.hold else RunFolder(self._run_root / own)
            held = run.read_plan()
            self._doors = Doors(held, self._open_target(held.target))
        return self._doors

    def _wait_there(self, plan: LaunchPlan) -> None:
        """Waits for the hold's nodes: its target may just be replacing one."""
        end = time.monotonic() + TAKEN_LIMIT_S
        while away := [n for n in self._connect().observe() if n.state is not NodeState.RUNNING]:
            if time.monotonic() > end:
                why = f": {away[0].detail}" if away[0].detail else ""
                what = f"node {away[0].node_index} of {plan.job_name} does not run{why}"
                raise TargetError(what, typed.command("status", plan.run_id))
            time.sleep(LOOK_S)

    # -- while it runs ----------------------------------------------------------------------------

    def _place(
        self, plan: LaunchPlan, nodes: list[HostNode], sessions: Mapping[str, Session]
    ) -> tuple[LaunchPlan, list[HostNode]]:
        """At the addresses that the held nodes have now; waits until they take runs."""

        def read(node: HostNode) -> None:
            index, end = node.node.node_index, time.monotonic() + TAKEN_LIMIT_S
            while (ready := self._read_ready(sessions[node.host.name], index)) is None:
                if time.monotonic() > end:
                    what = f"{node.host.name}: the hold's agent there does not come up"
                    raise TargetError(what, self._connect().entering(node.host.host))
                time.sleep(0.1)
            self._addresses[index] = ready.address

        self._connect().each(read, nodes)
        moved = plan_moved(plan, self._addresses)
        chosen = tuple(node.node.node_index for node in nodes)
        return moved, list(render_hosts(moved, chosen).nodes)

    def _read_ready(self, session: Session, index: int) -> Ready | None:
        """What a held node says of itself once it takes runs; None before."""
        assert self.hold is not None, "a run is started in a hold"
        log_dir = self.hold.plan.nodes[index].log_dir
        asked = ReadNewest(folder=str(PurePosixPath(log_dir).parent), name=READY_FILE)
        text = session.call(asked)
        return parse_record(Ready, json.loads(text)) if text else None

    def observe(self, plan: LaunchPlan) -> Observation:
        """As ``Target.observe``. A node is lost only once the hold has another one in its place.

        Raises ``TargetError`` while the hold's own target cannot be asked about a silent node.
        """
        seen = super().observe(plan)
        gone = {n.node_index: n for n in seen.nodes if n.state is NodeState.MISSING}
        if not gone or not self._lines or self.hold is None or self.hold.run.read_outcome():
            return seen
        if time.monotonic() - self._looked_at > LOOK_S or not gone.keys() <= self._judged.keys():
            held = self._connect(plan).observe()
            self._judged = {i: self._judge(node, held[i], plan) for i, node in gone.items()}
            self._looked_at = time.monotonic()
        nodes = (
            replace(node, state=judged[0], detail=judged[1] or node.detail)
            if node.node_index in gone and (judged := self._judged[node.node_index])
            else node
            for node in seen.nodes
        )
        return replace(seen, nodes=tuple(nodes))

    def _judge(
        self, node: NodeObservation, held: NodeObservation, plan: LaunchPlan
    ) -> tuple[NodeState, str]:
        """How a node is that is not seen, and why, by what is known of the ``held`` one."""
        if held.state is not NodeState.RUNNING:
            why = f": {held.detail}" if held.detail else ""
            return NodeState.PENDING, f"its node of the hold is gone{why}; waiting for the next one"
        if self._lines[node.node_index].state(key_of(node)).state == "running":
            # Only the way there is cut.
            return NodeState.RUNNING, ""
        host = HostsSettings.of(plan).hosts[node.node_index]
        with contextlib.suppress(TargetError), self._connect(plan).open(host.host) as session:
            if self._read_ready(session, node.node_index):
                return NodeState.MISSING, ""
        return NodeState.PENDING, "the next node of the hold is starting in its place"

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        return self._connect(plan).door(node_index)


def _describe(plan: LaunchPlan, node: NodePlan, ready: Ready) -> HostFacts:
    """A held node as a host. A container counts its GPUs from 0."""
    gpus = map(str, range(node.nproc_per_node if plan.accelerator == "cuda" else 0))
    return HostFacts(
        host=Host(name=node.name),
        cpu_count=ready.cpu_count,
        device_ids=tuple(gpus),
        address=ready.address,
        loopback=None,
        state_dir=f"{dict(node.env)[protocol.RUN_DIR]}/held",
        torch_version=plan.torch_version,
    )
