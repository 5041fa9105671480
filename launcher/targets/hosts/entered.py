"""Runs in a hold whose nodes do not see the run folders, and are entered by its target's doors.

The rest is as on hosts: the host program runs in each node, reached by its door in place of ssh.
"""

from __future__ import annotations

import random
import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol, typed
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.hold import Ready
from launcher.contract.node_plan import NodePlan
from launcher.follow.target import Door, Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder
from launcher.targets.docker_options import plan_containers
from launcher.targets.hold import check_contained
from launcher.targets.hosts.inventory import Inventory
from launcher.targets.hosts.plan import find_caller, plan_facts
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from launcher.targets.hosts.ssh import Session, Ssh
from launcher.targets.hosts.survey import check_takes_all
from launcher.targets.hosts.target import HostsTarget
from launcher.targets.machine import PORTS

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


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
        return typed.command("shell", self._held.run_id, str(self._index_of[host.name]))

    def fetching(self, host: Host, folder: str) -> str:
        enter = self.door(self._index_of[host.name]).words
        return f"{shlex.join((*enter, 'tar', '-cC', folder, '.'))} | tar -x"

    def open(self, host: Host) -> Session:
        try:
            return super().open(host)
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
        own = HostsSettings(
            hosts=tuple(_describe(plan, node, ready) for node, ready in told),
            ssh_config=None,
            containers=plan_containers(job, None),
            hold=self.hold.run.run_id,
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
