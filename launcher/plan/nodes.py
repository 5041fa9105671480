"""Each node's part of a plan: its name and address, what it sees where, and its environment."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.node_plan import Elastic, Env, Mount, NodePlan, Static
from launcher.plan.devices import NodeDevices
from launcher.plan.ranks import world_size
from launcher.plan.rendezvous import backend_of, endpoint_of, plan_rendezvous
from launcher.plan.target_facts import Folders, MachineFacts, NodeFacts, TargetFacts
from launcher.plan.torchrun import ENVIRONMENT, line_prefix_template, parse_torch_version

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

LOCAL_ADDR = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class _View:
    """What nodes with the same folders and interface have in common, as they see it."""

    run_dir: str
    checkpoint_dir: str
    mounts: tuple[Mount, ...]
    workdir: str | None
    env: Env


class NodePlanner:
    """Plans the nodes of one run; what they have in common is computed once."""

    def __init__(
        self, job: JobSpec, facts: TargetFacts, run_id: str, extra_args: tuple[str, ...]
    ) -> None:
        self._job, self._facts, self._run_id = job, facts, run_id
        self._in_container = facts.image is not None
        self._width = len(str(job.nnodes.max - 1))
        self._command = (*job.command, *extra_args)
        self._torch_version = parse_torch_version(facts.torch_version or job.torch_version)
        run_dir = f"{facts.run_root}/{run_id}"
        own = f"{run_dir}/{protocol.CHECKPOINTS_DIR}"
        given = job.checkpoint_dir
        checkpoints = own if given is None else absolute(given, facts.cwd)
        self._folders_here = Folders(run=run_dir, checkpoints=checkpoints, cwd=facts.cwd)
        self._view = functools.cache(self._plan_view)

    def folders(self, index: int) -> Folders:
        """Of one node, on its machine."""
        given = self._node(index).folders
        return self._folders_here if given is None else given.of_run(self._run_id)

    def plan(self, index: int, devices: NodeDevices) -> NodePlan:
        """One node's first incarnation."""
        job = self._job
        view = self._view(self.folders(index), self._machine(index).interface)
        rendezvous = plan_rendezvous(
            job,
            node_index=index,
            host=self._facts.rdzv_host or self._address(0),
            port=self._facts.ports[0] if self._facts.ports else None,
            id=job.rdzv.id or self._run_id,
            torch_version=self._torch_version,
            fence_dir=view.checkpoint_dir if self._facts.shares_storage else "",
        )
        largest = str(world_size(job.nnodes.max, devices.nproc_per_node))
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
            workdir=view.workdir,
            env=(*view.env, *_node_env(index, rendezvous), (protocol.MAX_WORLD_SIZE, largest)),
            secrets=job.secrets,
            mounts=view.mounts,
            device_ids=devices.device_ids,
            log_dir=f"{view.run_dir}/{protocol.NODES_DIR}/{index}/0",
        )

    def _node(self, index: int) -> NodeFacts:
        return self._facts.nodes[index] if self._facts.nodes else NodeFacts()

    def _machine(self, index: int) -> MachineFacts:
        return self._node(index).machine or self._facts.machine

    def _name(self, index: int) -> str:
        # Zero-padded: torchrun orders ranks by address as text, w-10 before w-2.
        return self._node(index).name or f"{self._run_id}-{index:0{self._width}d}"

    def _address(self, index: int) -> str:
        if given := self._machine(index).address:
            return given
        # A lone node meets itself; a container name would need a resolver for nothing.
        alone = self._job.nnodes.max == 1
        return self._name(index) if self._in_container and not alone else LOCAL_ADDR

    def _plan_view(self, folders: Folders, interface: str | None) -> _View:
        run_dir, checkpoint_dir = folders.run, folders.checkpoints
        if self._in_container and not folders.in_container:
            run_dir, checkpoint_dir = protocol.CONTAINER_RUN_DIR, protocol.CONTAINER_CHECKPOINT_DIR
        return _View(
            run_dir=run_dir,
            checkpoint_dir=checkpoint_dir,
            mounts=self._mounts(folders),
            workdir=self._workdir(folders.cwd),
            env=self._env(run_dir, checkpoint_dir, interface),
        )

    def _env(self, run_dir: str, checkpoint_dir: str, interface: str | None) -> Env:
        facts = self._facts
        own = [
            (protocol.RUN_ID, self._run_id),
            (protocol.RUN_DIR, run_dir),
            (protocol.CHECKPOINT_DIR, checkpoint_dir),
            (protocol.ATTEMPT, "0"),
            (protocol.STOP_GRACE_S, str(self._job.stop_grace_s)),
            (protocol.PROGRESS, "bar" if facts.terminal else "lines"),
        ]
        if self._in_container:
            # The caller's uid has no entry in the image's passwd: no home, no user name.
            own += [("HOME", "/tmp"), ("USER", "launcher"), ("LOGNAME", "launcher")]
        elif facts.accelerator == "cpu" and facts.machine.loopback and interface is None:
            own.append(("GLOO_SOCKET_IFNAME", facts.machine.loopback))
        if interface is not None:
            # Names differ from host to host. NCCL takes a beginning of a name, unless after =.
            own += [("GLOO_SOCKET_IFNAME", interface), ("NCCL_SOCKET_IFNAME", f"={interface}")]
        # The job's own values win, in the place of what they overrule.
        return tuple({**dict(ENVIRONMENT), **dict(own), **dict(self._job.env)}.items())

    def _mounts(self, folders: Folders) -> tuple[Mount, ...]:
        if not self._in_container or folders.in_container:
            return ()
        mounts = [
            Mount(source=folders.run, target=protocol.CONTAINER_RUN_DIR),
            Mount(source=folders.checkpoints, target=protocol.CONTAINER_CHECKPOINT_DIR),
        ]
        if self._job.uses_agent:
            archive = f"{folders.run}/{protocol.AGENT_ARCHIVE}"
            mounts.append(Mount(source=archive, target=protocol.CONTAINER_AGENT, read_only=True))
        mounts += [
            Mount(
                source=absolute(mount.source, folders.cwd),
                target=mount.target,
                read_only=mount.read_only,
            )
            for mount in self._job.mounts
        ]
        return tuple(mounts)

    def _workdir(self, cwd: str) -> str | None:
        """Where the command runs; without a container a mounted folder is its mount's source."""
        if self._in_container:
            return self._job.workdir
        if self._job.workdir is None:
            return cwd
        workdir = PurePosixPath(self._job.workdir)
        for mount in self._job.mounts:
            if workdir.is_relative_to(mount.target):
                inside = workdir.relative_to(mount.target)
                return str(PurePosixPath(absolute(mount.source, cwd)) / inside)
        return absolute(self._job.workdir, cwd)


def _node_env(index: int, rendezvous: Static | Elastic) -> Env:
    return (
        (protocol.NODE_INDEX, str(index)),
        (protocol.INCARNATION, "0"),
        (protocol.RDZV_BACKEND, backend_of(rendezvous)),
        (protocol.RDZV_ENDPOINT, endpoint_of(rendezvous)),
        (protocol.LINE_PREFIX_TEMPLATE, line_prefix_template(index)),
    )


def plan_node_like(node: NodePlan, index: int, name: str, incarnation: int = 0) -> NodePlan:
    """A node of another index with the settings of ``node``.

    It serves the rendezvous' store only where ``node`` does and the index is 0.
    """
    rendezvous = node.rendezvous
    if isinstance(rendezvous, Elastic):
        rendezvous = replace(rendezvous, is_host=rendezvous.is_host and index == 0)
    own = {
        protocol.NODE_INDEX: str(index),
        protocol.INCARNATION: str(incarnation),
        protocol.LINE_PREFIX_TEMPLATE: line_prefix_template(index),
    }
    nodes = PurePosixPath(node.log_dir).parents[1]
    return replace(
        node,
        node_index=index,
        incarnation=incarnation,
        name=name,
        local_addr=name if node.local_addr == node.name else node.local_addr,
        rendezvous=rendezvous,
        env=tuple((key, own.get(key, value)) for key, value in node.env),
        log_dir=str(nodes / str(index) / str(incarnation)),
    )


def plan_incarnation(node: NodePlan, incarnation: int) -> NodePlan:
    """The same node, started once more."""
    return plan_node_like(node, node.node_index, node.name, incarnation)


def absolute(path: str, cwd: str) -> str:
    """A path of the job, which may be relative to ``cwd``."""
    return str(PurePosixPath(cwd) / path)
