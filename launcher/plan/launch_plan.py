"""The launch plan: all that is decided about a run, from job and target facts alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.agent_settings import AgentSettings
from launcher.contract.node_plan import Elastic, Env, Mount, NodePlan, Static
from launcher.contract.records import changed_fields, dump_record
from launcher.plan.agent_task import plan_agent, plan_stores
from launcher.plan.devices import NodeDevices, check_capacity, plan_devices
from launcher.plan.hosts import HostFacts
from launcher.plan.pods import PodSettings
from launcher.plan.ranks import world_size
from launcher.plan.rendezvous import backend_of, endpoint_of, plan_rendezvous
from launcher.plan.target_facts import TargetFacts
from launcher.plan.torchrun import (
    ENVIRONMENT,
    line_prefix_template,
    parse_torch_version,
)

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

SCHEMA = 1
LOCAL_ADDR = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Limits of one node; None leaves the target's default."""

    cpus: float | None = None
    memory_bytes: int | None = None
    shm_bytes: int
    rdma: bool = False


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """One start of a run on a target. Immutable; what comes next is a new plan.

    ``attempt`` counts how often all nodes were started anew. ``max_restarts`` bounds the
    new attempts of the launcher; restarts inside torchrun are in each node's plan. ``agent`` are
    the settings of the node agent, None where each node runs plain torchrun; ``kubernetes`` those
    of pods, None elsewhere.
    ``run_dir`` and ``checkpoint_dir`` are absolute folders of the launcher's machine. ``hosts``
    are the machines of target ``hosts``, by node index, ``code`` the hash of what is sent to them;
    ``detached`` says that they go on without a launcher.
    """

    schema: int = SCHEMA
    run_id: str
    job_name: str
    target: str
    attempt: int = 0
    image: str | None = None
    accelerator: str
    torch_version: str | None = None
    python: str = "python3"
    user: str | None = None
    run_dir: str
    checkpoint_dir: str
    max_restarts: int
    stop_grace_s: int
    agent: AgentSettings | None = None
    resources: Resources
    runtime: str | None = None
    labels: Env = ()
    extra_hosts: Env = ()
    kubernetes: PodSettings | None = None
    nodes: tuple[NodePlan, ...]
    hosts: tuple[HostFacts, ...] = ()
    code: str | None = None
    ssh_config: str | None = None
    detached: bool = False

    @property
    def is_elastic(self) -> bool:
        """Whether the run goes on with fewer nodes than it started."""
        return self.nodes[0].min_nodes < self.nodes[0].max_nodes

    def to_json(self) -> str:
        """The plan as text, a field or a node on each line, without what has its default.

        ``parse_plan`` reads it back equal.
        """
        nodes = ",\n    ".join(map(dump_record, self.nodes))
        fields = (
            f'"{name}": ' + (f"[\n    {nodes}\n  ]" if name == "nodes" else dump_record(value))
            for name, value in {"schema": self.schema, **changed_fields(self)}.items()
        )
        return "{\n  " + ",\n  ".join(fields) + "\n}\n"


def new_run_id(job_name: str, randomness: bytes) -> str:
    """``digits-3f9a01``: the job's name and six hexadecimal digits of the given randomness."""
    return f"{job_name}-{randomness.hex()[:6]}"


def plan_run(
    job: JobSpec, facts: TargetFacts, *, run_id: str, extra_args: tuple[str, ...] = ()
) -> LaunchPlan:
    """Decides everything about a run; the same input gives the same plan.

    ``extra_args`` are appended to the job's command. Raises ``InputError`` where the job asks
    for what the facts do not offer.
    """
    run_dir = f"{facts.run_root}/{run_id}"
    checkpoint_dir = _on_host(job.checkpoint_dir, facts) or f"{run_dir}/{protocol.CHECKPOINTS_DIR}"
    devices = plan_devices(job, facts)
    check_capacity(job, facts, devices[0].nproc_per_node)
    shared = SharedByNodes(job, facts, run_id, run_dir, checkpoint_dir, extra_args)
    nodes = tuple(shared.node(index, devices[index]) for index in range(job.nnodes.max))
    return LaunchPlan(
        run_id=run_id,
        job_name=job.name,
        target=facts.target,
        attempt=0,
        image=facts.image,
        accelerator=facts.accelerator,
        torch_version=facts.torch_version or job.torch_version,
        python=facts.python,
        user=facts.user,
        run_dir=run_dir,
        checkpoint_dir=checkpoint_dir,
        max_restarts=job.max_restarts,
        stop_grace_s=job.stop_grace_s,
        agent=plan_agent(job, plan_stores(nodes, facts.spare_ports), facts.agent_in_image),
        resources=Resources(
            cpus=job.resources.cpus,
            memory_bytes=job.resources.memory_bytes,
            shm_bytes=job.resources.shm_bytes,
            rdma=bool(job.resources.rdma),
        ),
        runtime=job.docker.runtime,
        labels=job.docker.labels,
        extra_hosts=job.docker.extra_hosts,
        nodes=nodes,
    )


def plan_next_attempt(plan: LaunchPlan) -> LaunchPlan:
    """The same run with all nodes started anew.

    A failed agent closes its rendezvous id for ever, so elastic nodes get a new one.
    """
    attempt = plan.attempt + 1
    return replace(
        plan,
        attempt=attempt,
        nodes=tuple(_started_anew(node, plan.run_id, attempt) for node in plan.nodes),
    )


def plan_replacement(plan: LaunchPlan, node_index: int) -> LaunchPlan:
    """The same run and attempt with one node's next incarnation."""
    return replace(
        plan,
        nodes=tuple(
            _next_incarnation(node, node.env) if node.node_index == node_index else node
            for node in plan.nodes
        ),
    )


def parse_plan(text: str) -> LaunchPlan:
    """Reads what ``LaunchPlan.to_json`` wrote. Raises ``ValueError`` for anything else."""
    from pydantic import TypeAdapter

    return TypeAdapter(LaunchPlan).validate_json(text)


# -- nodes ------------------------------------------------------------------------------------


class SharedByNodes:
    """What all nodes of a plan have in common, computed once: planning stays linear and cheap."""

    def __init__(
        self,
        job: JobSpec,
        facts: TargetFacts,
        run_id: str,
        run_dir: str,
        checkpoint_dir: str,
        extra_args: tuple[str, ...],
    ) -> None:
        self.job, self.facts, self.run_id = job, facts, run_id
        self.in_container = facts.target != "local" and not facts.runs_bare
        self.width = len(str(job.nnodes.max - 1))
        self.command = (*job.command, *extra_args)
        self.torch_version = parse_torch_version(facts.torch_version or job.torch_version)
        here = (run_dir, checkpoint_dir)
        in_container = (protocol.CONTAINER_RUN_DIR, protocol.CONTAINER_CHECKPOINT_DIR)
        run_dir_of_node, checkpoint_dir_of_node = in_container if self.in_container else here
        self.run_dir = facts.node_run_dir or run_dir_of_node
        self.checkpoint_dir = facts.node_checkpoint_dir or checkpoint_dir_of_node
        own = (
            (run_dir, protocol.CONTAINER_RUN_DIR),
            (checkpoint_dir, protocol.CONTAINER_CHECKPOINT_DIR),
        )
        self.mounts = self._mounts(own)
        self.workdir = self._workdir()
        self.env = self._env()

    def node(self, index: int, devices: NodeDevices) -> NodePlan:
        name = self.name(index)
        rendezvous = plan_rendezvous(
            self.job,
            node_index=index,
            host=self.facts.rdzv_host or self.address(0),
            port=self.facts.free_port,
            id=self.job.rdzv.id or self.run_id,
            torch_version=self.torch_version,
            fence_dir=self.checkpoint_dir if self.facts.shares_storage else "",
        )
        return NodePlan(
            node_index=index,
            incarnation=0,
            name=name,
            local_addr=self.facts.local_addr or self.address(index),
            min_nodes=self.job.nnodes.min,
            max_nodes=self.job.nnodes.max,
            nproc_per_node=devices.nproc_per_node,
            max_restarts=self.job.max_restarts,
            rendezvous=rendezvous,
            command=self.command,
            workdir=self.workdir,
            env=(*self.env, *_node_env(index, rendezvous), *self.largest_world(devices)),
            secrets=self.job.secrets,
            mounts=self.mounts,
            device_ids=devices.device_ids,
            log_dir=_log_dir(self.run_dir, index, 0),
        )

    def largest_world(self, devices: NodeDevices) -> Env:
        size = world_size(self.job.nnodes.max, devices.nproc_per_node)
        return ((protocol.MAX_WORLD_SIZE, str(size)),)

    def name(self, index: int) -> str:
        if self.facts.node_names:
            return self.facts.node_names[index]
        # Zero-padded: torchrun orders ranks by address as text, w-10 before w-2.
        return f"{self.run_id}-{index:0{self.width}d}"

    def address(self, index: int) -> str:
        # A lone node meets itself; a container name would need a resolver for nothing.
        alone = self.job.nnodes.max == 1
        return self.name(index) if self.in_container and not alone else LOCAL_ADDR

    def _env(self) -> Env:
        facts = self.facts
        own = [
            (protocol.RUN_ID, self.run_id),
            (protocol.RUN_DIR, self.run_dir),
            (protocol.CHECKPOINT_DIR, self.checkpoint_dir),
            (protocol.ATTEMPT, "0"),
            (protocol.STOP_GRACE_S, str(self.job.stop_grace_s)),
            (protocol.PROGRESS, "bar" if facts.terminal else "lines"),
        ]
        if self.in_container:
            # The caller's uid has no entry in the image's passwd: no home, no user name.
            own += [("HOME", "/tmp"), ("USER", "launcher"), ("LOGNAME", "launcher")]
        elif facts.accelerator == "cpu":
            own.append(("GLOO_SOCKET_IFNAME", facts.interface or facts.loopback_interface))
        if facts.interface is not None:
            # Names differ from host to host. NCCL takes a beginning of a name, unless after =.
            own += [("GLOO_SOCKET_IFNAME", facts.interface)]
            own += [("NCCL_SOCKET_IFNAME", f"={facts.interface}")]
        # The job's own values win, in the place of what they overrule.
        return tuple({**dict(ENVIRONMENT), **dict(own), **dict(self.job.env)}.items())

    def _mounts(self, own: tuple[tuple[str, str], ...]) -> tuple[Mount, ...]:
        if not self.in_container or self.facts.node_run_dir is not None:
            return ()
        users = (
            Mount(
                source=_absolute(m.source, self.facts.cwd), target=m.target, read_only=m.read_only
            )
            for m in self.job.mounts
        )
        launchers = (Mount(source=source, target=target) for source, target in own)
        return (*launchers, *self._agent_mount(own[0][0]), *users)

    def _agent_mount(self, run_dir: str) -> tuple[Mount, ...]:
        if not self.job.uses_agent or self.facts.agent_in_image:
            return ()
        source = f"{run_dir}/{protocol.AGENT_ARCHIVE}"
        return (Mount(source=source, target=protocol.CONTAINER_AGENT, read_only=True),)

    def _workdir(self) -> str | None:
        """Where the command runs; on local processes a container's folder is its mount's source."""
        if self.in_container:
            return self.job.workdir
        if self.job.workdir is None:
            return self.facts.cwd
        workdir = PurePosixPath(self.job.workdir)
        for mount in self.job.mounts:
            if workdir.is_relative_to(mount.target):
                inside = workdir.relative_to(mount.target)
                return str(PurePosixPath(_absolute(mount.source, self.facts.cwd)) / inside)
        return _absolute(self.job.workdir, self.facts.cwd)


def _node_env(index: int, rendezvous: Static | Elastic) -> Env:
    return (
        (protocol.NODE_INDEX, str(index)),
        (protocol.INCARNATION, "0"),
        (protocol.RDZV_BACKEND, backend_of(rendezvous)),
        (protocol.RDZV_ENDPOINT, endpoint_of(rendezvous)),
        (protocol.LINE_PREFIX_TEMPLATE, line_prefix_template(index)),
    )


def _log_dir(run_dir: str, node_index: int, incarnation: int) -> str:
    return f"{run_dir}/{protocol.NODES_DIR}/{node_index}/{incarnation}"


def _started_anew(node: NodePlan, run_id: str, attempt: int) -> NodePlan:
    env = _with(node.env, protocol.ATTEMPT, str(attempt))
    rendezvous = replace(node.rendezvous, id=f"{run_id}.{attempt}")
    return replace(_next_incarnation(node, env), rendezvous=rendezvous)


def _next_incarnation(node: NodePlan, env: Env) -> NodePlan:
    incarnation = node.incarnation + 1
    return replace(
        node,
        incarnation=incarnation,
        env=_with(env, protocol.INCARNATION, str(incarnation)),
        log_dir=str(PurePosixPath(node.log_dir).parent / str(incarnation)),
    )


def _with(env: Env, name: str, value: str) -> Env:
    return tuple((key, value if key == name else old) for key, old in env)


def _on_host(path: str | None, facts: TargetFacts) -> str | None:
    return None if path is None else _absolute(path, facts.cwd)


def _absolute(path: str, cwd: str) -> str:
    return str(PurePosixPath(cwd) / path)
