"""Runs in a hold whose nodes do not see this machine's run folders.

Such a run is one on hosts, whose keepers have the held nodes fork the run's nodes. Pods are hosts
that are reached by ``kubectl exec`` (the target's door) in place of ssh: the host program runs in
each pod.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract import protocol, typed
from launcher.contract.causes import NodeState
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.hold import Ready, StartRun
from launcher.contract.node_plan import NodePlan
from launcher.contract.records import dump_record, parse_record
from launcher.contract.waits import POLL_S, SLOW_LOOK_S
from launcher.follow.nodes import AWAY_LIMIT_S
from launcher.follow.target import Artifact, Door, NodeObservation, Observation, Target
from launcher.plan.launch_plan import LaunchPlan, plan_moved
from launcher.plan.target_facts import TargetFacts
from launcher.targets.docker_options import plan_containers
from launcher.targets.held.child import TAKEN_LIMIT_S
from launcher.targets.held.hold import Hold, check_contained, check_reach, ids_in, render_run
from launcher.targets.hosts import nodes
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.plan import find_caller, plan_facts, run_dir_on, shared_folder
from launcher.targets.hosts.program.messages import RUNS_DIR, HeldNode, KeeperSpec
from launcher.targets.hosts.program.requests import read_newest
from launcher.targets.hosts.render import HostNode, render_hosts
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.session import Session
from launcher.targets.hosts.survey import check_folder
from launcher.targets.hosts.target import HostsTarget
from launcher.targets.machine import PORTS

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

FOLLOWED_S = AWAY_LIMIT_S + 30.0
"""A run outlives an API server that is away for as long as its launcher waits for it."""


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

    def _open(self, host: Host, argv: tuple[str, ...]) -> Session:
        try:
            return super()._open(host, argv)
        except TargetError as error:
            raise TargetError(error.what, f"to try: {self.entering(host)}") from error

    def disconnect(self, host: Host) -> bool:
        """As ``Ssh.disconnect``: no connection is shared here."""
        return False


class HeldHostsTarget(HostsTarget):
    """Has the held node of each host fork the run's node."""

    def __init__(self, hold: Hold, target: Target) -> None:
        """``target`` has started the hold."""
        super().__init__(hold.run.path.parent)
        self.name, self.hold, self._target = target.name, hold, target

    # -- before a run -----------------------------------------------------------------------------

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: from the hold's plan."""
        plan, cwd = self.hold.plan, Path.cwd()
        if job.nnodes.max < (count := len(plan.nodes)):
            # The others would be idle, and end.
            what = f"a run in {plan.job_name} takes all of its {count} nodes"
            raise InputError(f"nnodes is {job.nnodes}: {what}", f"--nnodes {count}")
        job, settings = self._read_nodes(job, plan)
        facts = plan_facts(
            job,
            settings,
            # In pods keepers run inside of the containers.
            image=plan.image if settings.hosts[0].runtime == "docker" else None,
            torch_version=plan.torch_version,
            port=random.SystemRandom().choice(PORTS),
            run_root=str(self._run_root.absolute()),
            cwd=str(cwd),
            inner=find_caller(self.code.record, cwd) if self.code else None,
            terminal=sys.stderr.isatty(),
            names=[node.name for node in plan.nodes],
        )
        place = f"the hold {plan.job_name} on {plan.target}"
        machine = replace(facts.machine, loopback=None)
        return replace(facts, target=self.name, place=place, machine=machine)

    def _read_nodes(self, job: JobSpec, plan: LaunchPlan) -> tuple[JobSpec, HostsSettings]:
        """The job, and the hold's nodes as they were when it was made.

        Raises ``TargetError`` if they do not share the checkpoint folder of a job, if it has one,
        and ``InputError`` for a job that they cannot run.
        """
        settings, folder = HostsSettings.of(plan), shared_folder(job, str(Path.cwd()))
        runtime = settings.hosts[0].runtime
        if "runtime" in job.hosts.model_fields_set and job.hosts.runtime != runtime:
            what = f"{job.hosts.runtime}, but the nodes of {plan.job_name} are {runtime}"
            fix = f"leave it out, or {typed.command('release', plan.job_name)}, then hold this job"
            raise KeyInputError(("hosts", "runtime"), what, fix)
        check_reach(job, plan, f"{settings.hosts[0].state_dir}/{RUNS_DIR}", str(Path.cwd()))
        if folder and len(settings.hosts) > 1:
            check_folder(self._connect(plan), settings.hosts, folder)
        held = zip(settings.hosts, plan.nodes, strict=True)
        hosts = tuple(replace(host, device_ids=ids_in(plan, node)) for host, node in held)
        return job, replace(settings, hosts=hosts, hold=plan.run_id)

    def has_image(self, job: JobSpec) -> bool:
        return self.hold.plan.image is not None

    def check(self, plan: LaunchPlan) -> None:
        self.hold.enter(plan.run_id)
        super().check(plan)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> Artifact:
        return render_run(plan)

    # -- while it runs ----------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        self.hold.enter(plan.run_id)
        super().submit(plan, only)

    def _acquire_lease(self, plan: LaunchPlan, node: HostNode, session: Session) -> None:
        # The hold has the lease. An earlier incarnation may still run.
        if node.node.incarnation:
            index = node.node.node_index
            nodes.end(session, plan, node.host, index, 0.0, tell_launcher=False)

    def _provide_image(self, plan: LaunchPlan, sessions: Iterable[Session]) -> None:
        """The held containers have it."""

    def _spec(self, plan: LaunchPlan, node: HostNode) -> KeeperSpec:
        """With what the held node is asked."""
        is_contained = plan.image is not None
        assert node.task is not None, "a run in a hold has the agent"
        request = StartRun(
            task=node.task.path,
            node_dir=node.spec.node_dir,
            record_dir=f"{node.spec.node_dir}/.held",
            cwd=(node.node.workdir or "") if is_contained else node.spec.cwd,
            env=(),
            adds_env=is_contained,
            fresh=self.hold.fresh,
        )
        held = HeldNode(
            run_dir=self._hold_dir(node),
            request=dump_record(request),
            user=(self.hold.run.path / protocol.HOLD_USER).read_text(),
        )
        return node.spec.having(held=held)

    def tell_closed(self) -> str:
        return self.hold.tell_ended()

    def _hold_dir(self, node: HostNode) -> str:
        """The hold's folder, as the node's keeper sees it."""
        return run_dir_on(node.host, self.hold.run.run_id)

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        try:
            super().stop(run_id, grace_s, only)
        finally:
            if only is None:
                self.hold.leave()


class HeldPodsTarget(HeldHostsTarget):
    """Has the held node in each pod fork the run's node."""

    def __init__(self, hold: Hold, target: Target) -> None:
        super().__init__(hold, target)
        self._doors: Doors | None = None
        self._addresses: dict[int, str] = {}
        """Where nodes of the hold were found, by index."""
        self._looked_at, self._held = float("-inf"), tuple[NodeObservation, ...]()
        """When the hold's own nodes were looked at, and what was found."""

    def _read_nodes(self, job: JobSpec, plan: LaunchPlan) -> tuple[JobSpec, HostsSettings]:
        """As there, from what the nodes say of themselves."""
        check_contained(job, plan, str(Path.cwd()))
        if job.checkpoint_dir:
            what = f"{job.checkpoint_dir}: nodes of {plan.job_name} see no folders of this machine"
            raise KeyInputError(("checkpoint_dir",), what, "leave it out: the hold has a folder")
        ready = self.hold.wait_ready()
        self._wait_there(plan)
        settings = HostsSettings(
            hosts=tuple(_describe(plan, *pair) for pair in zip(plan.nodes, ready, strict=True)),
            ssh_config=None,
            containers=plan_containers(job, None),
            hold=plan.run_id,
            followed_s=FOLLOWED_S,
        )
        if self._target.as_run(plan).checkpoint_dir:
            # All nodes see this folder, and it outlives them. Jobs of one name share it.
            folder = f"{dict(plan.nodes[0].env)[protocol.CHECKPOINT_DIR]}/{job.name}"
            job = job.model_copy(update={"checkpoint_dir": folder})
        return job, settings

    def _hold_dir(self, node: HostNode) -> str:
        return dict(self.hold.plan.nodes[node.node.node_index].env)[protocol.RUN_DIR]

    def _connect(self, plan: LaunchPlan) -> Doors:
        if self._doors is None:
            self._doors = Doors(self.hold.plan, self._target)
        return self._doors

    def _observe_held(self) -> tuple[NodeObservation, ...]:
        """The hold's own nodes. Raises ``TargetError`` if its target cannot be asked."""
        return self._target.observe(self.hold.plan).nodes

    def _wait_there(self, plan: LaunchPlan) -> None:
        """Waits for the hold's nodes: its target may just be replacing one."""
        end = time.monotonic() + TAKEN_LIMIT_S
        while away := [n for n in self._observe_held() if n.state is not NodeState.RUNNING]:
            if time.monotonic() > end:
                why = f": {away[0].detail}" if away[0].detail else ""
                what = f"node {away[0].node_index} of {plan.job_name} does not run{why}"
                raise TargetError(what, typed.command("status", plan.run_id))
            time.sleep(SLOW_LOOK_S)

    def _place(
        self, plan: LaunchPlan, nodes: list[HostNode], sessions: Mapping[str, Session]
    ) -> tuple[LaunchPlan, list[HostNode]]:
        """At the addresses that the held nodes have now; waits until they take runs."""

        def wait_ready(node: HostNode) -> None:
            index, end = node.node.node_index, time.monotonic() + TAKEN_LIMIT_S
            while (ready := self._read_ready(sessions[node.host.name], index)) is None:
                if time.monotonic() > end:
                    what = f"{node.host.name}: the hold's agent there does not come up"
                    raise TargetError(what, self._connect(plan).entering(node.host.host))
                time.sleep(POLL_S)
            self._addresses[index] = ready.address

        self._connect(plan).each(wait_ready, nodes)
        moved = plan_moved(plan, self._addresses)
        chosen = tuple(node.node.node_index for node in nodes)
        return moved, list(render_hosts(moved, chosen).nodes)

    def _read_ready(self, session: Session, index: int) -> Ready | None:
        """What a held node says of itself once it takes runs; None before."""
        log_dir = self.hold.plan.nodes[index].log_dir
        folder = str(PurePosixPath(log_dir).parent)
        text = session.call(read_newest, folder=folder, name=protocol.HOLD_READY)
        return parse_record(Ready, json.loads(text)) if text else None

    def observe(self, plan: LaunchPlan) -> Observation:
        """As ``Target.observe``. A node is lost only once the hold has another one in its place.

        Raises ``TargetError`` while the hold's own target cannot be asked about a silent node.
        """
        observation = super().observe(plan)
        is_lost = any(node.state is NodeState.MISSING for node in observation.nodes)
        if not is_lost or not self._lines or self.hold.run.read_outcome():
            return observation
        if time.monotonic() - self._looked_at > SLOW_LOOK_S:
            self._held, self._looked_at = self._observe_held(), time.monotonic()
        return replace(observation, nodes=tuple(map(self._judge, observation.nodes)))

    def _judge(self, node: NodeObservation) -> NodeObservation:
        """A node, by what is known of the held one."""
        if node.state is not NodeState.MISSING:
            return node
        if (held := self._held[node.node_index]).state is not NodeState.RUNNING:
            why = f": {held.detail}" if held.detail else ""
            what = f"its node of the hold is gone{why}; waiting for the next one"
            return replace(node, state=NodeState.PENDING, detail=what)
        runs = self._lines[node.node_index].state(nodes.key_of(node)).state == "running"
        # In that case only the way there is cut.
        return replace(node, state=NodeState.RUNNING) if runs else node

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
