"""The launch plan: all that is decided about a run, from job and target facts alone; the plans of
its restarts and replaced nodes; a new run's id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.node_plan import AgentSettings, NodePlan, Static
from launcher.contract.records import changed_fields, dump_record, parse_text
from launcher.plan.agent_task import TRAINING, Purpose, plan_agent, plan_stores
from launcher.plan.devices import check_capacity, plan_devices
from launcher.plan.nnodes import NodesThere, decide_nnodes
from launcher.plan.nodes import NodePlanner, plan_incarnation
from launcher.plan.rendezvous import endpoint_of
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.plan.target_settings import TargetSettings, dump_settings
from launcher.plan.torchrun import check_torch_version

if TYPE_CHECKING:
    from launcher.code.place import CodePlace
    from launcher.job.spec import JobSpec

SCHEMA = 2
"""The version of the plan as JSON."""
_PATH = re.compile(r"/[\w./-]*\w")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one node has; None leaves the target's default."""

    accelerator: str
    cpus: float | None = None
    memory_bytes: int | None = None
    shm_bytes: int
    rdma: bool = False


@dataclass(frozen=True, kw_only=True)
class CodePlan:
    """The training code that nodes get. ``root`` is its folder on the launcher's machine, and
    ``inner`` the working folder below it. ``hash`` is of the code sent; empty if none is sent."""

    root: str
    inner: str = ""
    hash: str = ""


@dataclass(frozen=True, kw_only=True)
class Notify:
    """As ``notify`` of the job; without a command there is a webhook."""

    command: str = ""
    webhook: str = ""
    when: str = "end"
    restarts: int = 0
    """0: no notice of restarts."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """One start of a run on a target. Immutable: a restart or a replacement makes a new plan."""

    run_id: str
    job_name: str
    target: str
    attempt: int = 0
    """How often all nodes were started anew. An agent counts its own restarts."""
    image: str | None = None
    """None if nodes are processes without a container."""
    torch_version: str | None = None
    run_dir: str
    """An absolute folder of the launcher's machine."""
    checkpoint_dir: str
    """As the machine of node 0 sees it; absolute."""
    stop_grace_s: int
    agent: AgentSettings | None = None
    """None if each node runs plain torchrun."""
    resources: Resources
    code: CodePlan | None = None
    """None if nodes find the code without the launcher: in their image, or in place."""
    detached: bool = False
    """Whether the nodes go on without a launcher."""
    notify: Notify | None = None
    nodes: tuple[NodePlan, ...]
    own: TargetSettings | None = None
    """What only the target's room reads."""

    @property
    def accelerator(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.resources.accelerator

    @property
    def max_restarts(self) -> int:
        """The most new attempts that the launcher makes, and restarts that an agent makes."""
        return self.nodes[0].max_restarts

    @property
    def min_nodes(self) -> int:
        """The least nodes that train."""
        return self.nodes[0].min_nodes

    @property
    def max_nodes(self) -> int:
        """The most nodes that train."""
        return self.nodes[0].max_nodes

    @property
    def nproc_per_node(self) -> int:
        """Workers on each node."""
        return self.nodes[0].nproc_per_node

    @property
    def is_elastic(self) -> bool:
        """Whether the run goes on with fewer nodes than it started."""
        return self.min_nodes < self.max_nodes

    @property
    def nnodes(self) -> str:
        """As the job file writes it: ``2``, or ``1:2``."""
        return f"{self.min_nodes}:{self.max_nodes}" if self.is_elastic else str(self.max_nodes)

    @property
    def size(self) -> str:
        """How many nodes and workers it has, and on what they run, in words."""
        return f"nnodes {self.nnodes} x nproc_per_node {self.nproc_per_node} on {self.accelerator}"

    @property
    def is_hold(self) -> bool:
        """Whether its nodes wait for other runs."""
        return self.agent is not None and self.agent.hold_idle_s > 0

    @property
    def hold(self) -> str:
        """The run id of the hold whose nodes the run uses; empty for nodes of its own."""
        return self.own.hold if self.own else ""

    @property
    def place(self) -> str:
        """Where the run is, for a person."""
        return f"the hold {self.hold.rpartition('-')[0]}" if self.hold else self.target

    @property
    def machines(self) -> tuple[MachineFacts, ...]:
        """The machine of each node; empty if it is the launcher's own, or not known yet."""
        return () if self.own is None else self.own.machines

    def with_output_on_consoles(self) -> LaunchPlan:
        """The plan whose agents copy to their consoles what their workers print."""
        return replace(self, agent=self.agent and replace(self.agent, tee=True))

    def outside(self, path: str) -> str:
        """The path outside for a path in the nodes' containers; any other path unchanged."""
        inside = PurePosixPath(path)
        fits = [m for m in self.nodes[0].mounts if inside.is_relative_to(m.target)]
        if not fits:
            return path
        mount = max(fits, key=lambda m: len(m.target))
        return str(PurePosixPath(mount.source, inside.relative_to(mount.target)))

    def tell_outside(self, text: str) -> str:
        """The text with each path in the nodes' containers replaced by the path outside."""
        return _PATH.sub(lambda match: self.outside(match[0]), text)

    def to_json(self) -> str:
        """The plan as text, a field or a node on each line, without what has its default.

        ``parse_plan`` reads it back equal.
        """
        data: dict[str, Any] = {"schema": SCHEMA, **changed_fields(self)}
        if self.own is not None:
            data["own"] = dump_settings(self.own)
        nodes = ",\n    ".join(map(dump_record, self.nodes))
        fields = (
            f'"{name}": ' + (f"[\n    {nodes}\n  ]" if name == "nodes" else dump_record(value))
            for name, value in data.items()
        )
        return "{\n  " + ",\n  ".join(fields) + "\n}\n"


def plan_run(
    job: JobSpec,
    facts: TargetFacts,
    *,
    run_id: str,
    extra_args: tuple[str, ...] = (),
    detached: bool = False,
    place: CodePlace | None = None,
    code_hash: str = "",
    purpose: Purpose = TRAINING,
) -> LaunchPlan:
    """Decides everything about a run; the same input gives the same plan.

    ``extra_args`` are appended to the job's command. ``place`` is where the job's code is, and
    ``code_hash`` is of what is sent. Raises ``InputError`` if the job asks for what the facts
    do not offer, or to debug a rank that the run does not have.
    """
    check_torch_version(facts.torch_version, job.torch_version)
    if facts.nodes:
        there, fix = len(facts.nodes), "a smaller nnodes, or a place with more nodes"
        says = f"{facts.target} has {there} for it"
        job = decide_nnodes(job, NodesThere(count=there, says=says, fix=fix))
    devices = plan_devices(job, facts)
    check_capacity(job, facts, devices[0].nproc_per_node)
    planner = NodePlanner(job, facts, run_id, extra_args, place, holds=purpose.hold_idle_s > 0)
    nodes = tuple(planner.plan(index, of_node) for index, of_node in enumerate(devices))
    stores = plan_stores(nodes, facts.ports[1:])
    if purpose.debug_rank is not None:
        _check_debugged(purpose.debug_rank, job, len(nodes) * nodes[0].nproc_per_node)
    return LaunchPlan(
        run_id=run_id,
        job_name=job.name,
        target=facts.target,
        attempt=0,
        image=facts.image,
        torch_version=facts.torch_version or job.torch_version,
        run_dir=f"{facts.run_root}/{run_id}",
        checkpoint_dir=planner.folders(0).checkpoints,
        stop_grace_s=job.stop_grace_s,
        agent=plan_agent(job, facts, run_id, stores, purpose),
        resources=Resources(
            accelerator=facts.accelerator,
            cpus=job.resources.cpus,
            memory_bytes=job.resources.memory_bytes,
            shm_bytes=job.resources.shm_bytes,
            rdma=bool(job.resources.rdma),
        ),
        code=(
            CodePlan(root=str(place.root), inner=place.inner, hash=code_hash)
            if place is not None and planner.folders(0).code
            else None
        ),
        detached=detached,
        notify=Notify(**job.notify.model_dump(exclude_none=True)) if job.notify else None,
        nodes=nodes,
        own=facts.own,
    )


def _check_debugged(rank: int, job: JobSpec, world_size: int) -> None:
    if rank >= world_size:
        last = f"0 to {world_size - 1}" if world_size > 1 else "0 alone"
        raise InputError(f"--debug {rank}: the run has rank {last}", "--debug 0")
    if not job.uses_agent:
        what = "--debug: plain torchrun, which this job runs under, connects no terminal"
        raise InputError(what, "leave out engine: torchrun")


def plan_next_attempt(plan: LaunchPlan) -> LaunchPlan:
    """The same run with all nodes started anew.

    A failed agent closes its rendezvous id for ever, so elastic nodes get a new one.
    """
    attempt = plan.attempt + 1
    nodes = tuple(_started_anew(node, plan.run_id, attempt) for node in plan.nodes)
    return replace(plan, attempt=attempt, nodes=nodes)


def _started_anew(node: NodePlan, run_id: str, attempt: int) -> NodePlan:
    anew = plan_incarnation(node, node.incarnation + 1)
    number = (protocol.ATTEMPT, str(attempt))
    return replace(
        anew,
        env=tuple(number if pair[0] == protocol.ATTEMPT else pair for pair in anew.env),
        rendezvous=replace(anew.rendezvous, id=f"{run_id}.{attempt}"),
    )


def plan_replacement(plan: LaunchPlan, node_index: int) -> LaunchPlan:
    """The same run and attempt with one node's next incarnation."""
    nodes = tuple(
        plan_incarnation(node, node.incarnation + 1) if node.node_index == node_index else node
        for node in plan.nodes
    )
    return replace(plan, nodes=nodes)


def plan_moved(plan: LaunchPlan, addresses: Mapping[int, str]) -> LaunchPlan:
    """The same run with some nodes, by index, at other addresses."""
    first, moved = plan.nodes[0].local_addr, addresses.get(0)

    def move(node: NodePlan) -> NodePlan:
        met, local_addr = node.rendezvous, addresses.get(node.node_index, node.local_addr)
        if isinstance(met, Static):
            met = replace(met, master_addr=moved or first) if met.master_addr == first else met
        elif met.endpoint_host == first:
            met = replace(met, endpoint_host=moved or first)
        env = {**dict(node.env), protocol.RDZV_ENDPOINT: endpoint_of(met)}
        return replace(node, local_addr=local_addr, rendezvous=met, env=tuple(env.items()))

    agent = plan.agent and replace(
        plan.agent,
        stores=tuple(
            replace(store, host=addresses.get(store.node_index, store.host))
            for store in plan.agent.stores
        ),
    )
    return replace(plan, agent=agent, nodes=tuple(map(move, plan.nodes)))


def new_run_id(job_name: str) -> str:
    """``digits-3f9a01``: the job's name and six random hexadecimal digits."""
    return f"{job_name}-{os.urandom(3).hex()}"


def parse_plan(text: str) -> LaunchPlan:
    """Reads what ``LaunchPlan.to_json`` wrote. Raises ``ValueError`` for anything else."""
    return parse_text(LaunchPlan, text, SCHEMA)
