"""Each node's part of a plan: its name and address, what it sees where, and its environment, such
as MASTER_ADDR and OMP_NUM_THREADS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.node_plan import Elastic, Env, Mount, NodePlan, place_node
from launcher.plan.devices import NodeDevices
from launcher.plan.rendezvous import backend_of, endpoint_of, plan_rendezvous
from launcher.plan.target_facts import Folders, MachineFacts, NodeFacts, TargetFacts
from launcher.plan.torchrun import parse_torch_version

if TYPE_CHECKING:
    from launcher.code.place import CodePlace
    from launcher.job.spec import JobSpec

ENVIRONMENT: Env = (
    (protocol.OWN_STORE, "1"),
    # torchrun sets it only for several workers, so that a shrink to one would change results.
    ("OMP_NUM_THREADS", "1"),
    ("PYTHONUNBUFFERED", "1"),
)
"""Variables against hangs and differences that were measured; the job's ``env`` may overrule."""


class NodePlanner:
    """Plans the nodes of one run."""

    def __init__(
        self,
        job: JobSpec,
        facts: TargetFacts,
        run_id: str,
        extra_args: tuple[str, ...],
        place: CodePlace | None,
        *,
        holds: bool,
    ) -> None:
        """``holds``: other runs will run in these nodes."""
        self._holds = holds
        self._job, self._facts, self._run_id = job, facts, run_id
        self._in_container = facts.image is not None
        self._width = len(str(job.nnodes.max - 1))
        self._torch_version = parse_torch_version(facts.torch_version or job.torch_version)
        run_dir = f"{facts.run_root}/{run_id}"
        default = f"{run_dir}/{protocol.CHECKPOINTS_DIR}"
        given = job.checkpoint_dir
        checkpoints = default if given is None else absolute(given, facts.cwd)
        # Containers of this machine see the code's own folder.
        is_used = place is not None and (self._in_container or place.is_copy)
        code = str(place.root) if place and is_used else ""
        self._folders_here = Folders(run=run_dir, checkpoints=checkpoints, cwd=facts.cwd, code=code)
        self._nodes = facts.nodes or (NodeFacts(),) * job.nnodes.max
        self._place = place if self.folders(0).code else None
        self._command = (*(self._place or job).command, *extra_args)
        # A run of one node under the agent uses its own loopback for the rendezvous.
        alone = protocol.LOOPBACK if job.uses_agent and job.nnodes.max == 1 else None
        # MASTER_ADDR of a static job; the rendezvous host of any other.
        self._master_addr = alone or self._address(0)

    def plan(self, index: int, devices: NodeDevices) -> NodePlan:
        """One node's first incarnation."""
        job, facts, folders = self._job, self._facts, self.folders(index)
        run_dir, checkpoint_dir = folders.run, folders.checkpoints
        if self._in_container and not folders.in_container:
            run_dir, checkpoint_dir = protocol.CONTAINER_RUN_DIR, protocol.CONTAINER_CHECKPOINT_DIR
        rendezvous = plan_rendezvous(
            job,
            node_index=index,
            host=self._master_addr,
            port=facts.ports[0] if facts.ports else None,
            id=job.rdzv.id or self._run_id,
            torch_version=self._torch_version,
            fence_dir=checkpoint_dir if facts.shares_storage else "",
        )
        run_env = {
            protocol.RUN_ID: self._run_id,
            protocol.RUN_DIR: run_dir,
            protocol.CHECKPOINT_DIR: checkpoint_dir,
            protocol.ATTEMPT: "0",
            protocol.STOP_GRACE_S: str(job.stop_grace_s),
            protocol.PROGRESS: "bar" if facts.terminal else "lines",
            **dict(self._env_of_place(self._machine(index).interface)),
        }
        return NodePlan(
            node_index=index,
            incarnation=0,
            name=self._name(index),
            local_addr=self._address(index),
            min_nodes=job.nnodes.min,
            max_nodes=job.nnodes.max,
            nproc_per_node=devices.nproc_per_node,
            max_restarts=job.max_restarts,
            rendezvous=rendezvous,
            command=self._command,
            workdir=self._workdir(folders),
            env=(
                # The job's own values win, at the position of those that they overrule.
                *{**dict(ENVIRONMENT), **run_env, **dict(facts.shell), **dict(job.env)}.items(),
                (protocol.NODE_INDEX, str(index)),
                (protocol.INCARNATION, "0"),
                (protocol.RDZV_BACKEND, backend_of(rendezvous)),
                (protocol.RDZV_ENDPOINT, endpoint_of(rendezvous)),
                (protocol.LINE_PREFIX_TEMPLATE, protocol.LINE_PREFIX.format(node_index=index)),
                (protocol.MAX_WORLD_SIZE, str(job.nnodes.max * devices.nproc_per_node)),
            ),
            secrets=tuple(dict.fromkeys(job.secrets)),
            mounts=self._mounts(folders),
            device_ids=devices.device_ids,
            log_dir=f"{run_dir}/{protocol.NODES_DIR}/{index}/0",
        )

    def folders(self, index: int) -> Folders:
        """A node's folders, on its machine."""
        given = self._nodes[index].folders
        return self._folders_here if given is None else given.of_run(self._run_id)

    def _machine(self, index: int) -> MachineFacts:
        return self._nodes[index].machine or self._facts.machine

    def _name(self, index: int) -> str:
        # Zero-padded: torchrun orders ranks by address as text, w-10 before w-2.
        return self._nodes[index].name or f"{self._run_id}-{index:0{self._width}d}"

    def _address(self, index: int) -> str:
        if given := self._machine(index).address:
            return given
        # The only node of a run needs no name: a container's would have to be resolved.
        alone = self._job.nnodes.max == 1
        return self._name(index) if self._in_container and not alone else protocol.LOOPBACK

    def _env_of_place(self, interface: str | None) -> Env:
        facts, env = self._facts, dict[str, str]()
        if self._in_container:
            # The caller's uid has no entry in the image's passwd: no home, no user name.
            env |= {"HOME": "/tmp", "USER": "launcher", "LOGNAME": "launcher"}
        if interface is not None:
            # Names differ from host to host. NCCL takes a name as a prefix, unless it is after "=".
            env |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
        elif facts.machine.loopback and not self._in_container and facts.accelerator == "cpu":
            env["GLOO_SOCKET_IFNAME"] = facts.machine.loopback
        if self._job.is_on_cpu and facts.accelerator == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        return tuple(env.items())

    def _mounts(self, folders: Folders) -> tuple[Mount, ...]:
        if not self._in_container or folders.in_container:
            return ()
        mounts = [
            Mount(source=folders.run, target=protocol.CONTAINER_RUN_DIR),
            Mount(source=folders.checkpoints, target=protocol.CONTAINER_CHECKPOINT_DIR),
        ]
        if self._job.uses_agent and not self._facts.agent_in_image:
            archive = f"{folders.run}/{protocol.AGENT_ARCHIVE}"
            mounts.append(Mount(source=archive, target=protocol.CONTAINER_AGENT, read_only=True))
        if self._place:
            mounts.append(Mount(source=folders.code, target=protocol.CONTAINER_CODE))
        users = (
            Mount(source=absolute(m.source, folders.cwd), target=m.target, read_only=m.read_only)
            for m in self._job.mounts
        )
        # Runs in a hold see their own folders under the same paths as outside.
        outside = [str(PurePosixPath(folders.run).parent)] if self._holds else []
        kept = PurePosixPath(folders.checkpoints)
        if self._holds and not kept.is_relative_to(outside[0]):
            # A folder named after the run is for that run alone: mount its parent.
            outside.append(str(kept.parent if kept.name == self._run_id else kept))
        held = (Mount(source=path, target=path) for path in outside)
        return (*mounts, *users, *held)

    def _workdir(self, folders: Folders) -> str | None:
        """Where the command runs; without a container a mounted folder is its mount's source."""
        given, cwd = self._job.workdir, folders.cwd
        if self._place:
            is_mounted = self._in_container and not folders.in_container
            root = protocol.CONTAINER_CODE if is_mounted else folders.code
            return str(PurePosixPath(root) / self._place.inner)
        if self._in_container or given is None:
            return given if self._in_container else cwd
        for mount in self._job.mounts:
            if PurePosixPath(given).is_relative_to(mount.target):
                inside = PurePosixPath(given).relative_to(mount.target)
                return str(PurePosixPath(absolute(mount.source, cwd)) / inside)
        return absolute(given, cwd)


def plan_node_like(node: NodePlan, index: int, name: str, incarnation: int = 0) -> NodePlan:
    """A node of another index with the settings of ``node``.

    It serves the rendezvous store only if ``node`` does and the index is 0.
    """
    rendezvous = node.rendezvous
    if isinstance(rendezvous, Elastic):
        rendezvous = replace(rendezvous, is_host=rendezvous.is_host and index == 0)
    return replace(
        place_node(node, index, incarnation),
        name=name,
        local_addr=name if node.local_addr == node.name else node.local_addr,
        rendezvous=rendezvous,
    )


def plan_incarnation(node: NodePlan, incarnation: int) -> NodePlan:
    """The same node, started once more."""
    return plan_node_like(node, node.node_index, node.name, incarnation)


def absolute(path: str, cwd: str) -> str:
    """A path of the job, which may be relative to ``cwd``."""
    return str(PurePosixPath(cwd) / path)
