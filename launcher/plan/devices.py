"""Workers and accelerators of each node, and whether one machine can start so many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.contract.errors import KeyInputError
from launcher.plan.target_facts import MachineFacts, TargetFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class NodeDevices:
    """How many workers a node runs, and on which accelerators; none of them on CPU."""

    nproc_per_node: int
    device_ids: tuple[str, ...]


def plan_devices(job: JobSpec, facts: TargetFacts) -> tuple[NodeDevices, ...]:
    """Workers and accelerators of each node; nodes that share a machine get disjoint ones."""
    if facts.nodes:
        machines = (node.machine or facts.machine for node in facts.nodes)
        return tuple(_on_own_machine(job, facts, machine) for machine in machines)
    count, machine = job.nnodes.max, facts.machine
    if facts.accelerator == "cpu" or machine.device_ids is None:
        check_no_gpus_wanted(job, facts, machine)
        per_node = _cpu_workers(job, machine)
        return (NodeDevices(nproc_per_node=per_node, device_ids=()),) * count
    wanted, asked, ids = job.nproc_per_node, job.resources.gpus, machine.device_ids
    workers = wanted if isinstance(wanted, int) else asked or len(ids) // count
    per_node = asked or workers
    if per_node * count > len(ids) or workers == 0:
        raise KeyInputError(
            ("resources", "gpus") if asked else ("nproc_per_node",),
            f"{count} nodes x {max(per_node, 1)} GPUs asked for, target {facts.target} has "
            f"{len(ids)}: nodes on one machine never share a GPU",
            f"lower nnodes, nproc_per_node or resources.gpus to at most {len(ids)} GPUs in all",
        )
    return tuple(
        NodeDevices(
            nproc_per_node=workers, device_ids=ids[index * per_node : (index + 1) * per_node]
        )
        for index in range(count)
    )


def _on_own_machine(job: JobSpec, facts: TargetFacts, machine: MachineFacts) -> NodeDevices:
    wanted, asked, ids = job.nproc_per_node, job.resources.gpus, machine.device_ids
    if ids is None:
        number = machine.cpu_count if wanted == "cpu" else asked or machine.cpu_count
        number = wanted if isinstance(wanted, int) else number
        return NodeDevices(nproc_per_node=number, device_ids=())
    if facts.accelerator == "cpu":
        check_no_gpus_wanted(job, facts, machine)
        number = wanted if isinstance(wanted, int) else machine.cpu_workers
        return NodeDevices(nproc_per_node=number, device_ids=())
    number = wanted if isinstance(wanted, int) else asked or len(ids)
    gpus = asked or number
    if gpus > len(ids):
        raise KeyInputError(
            ("resources", "gpus") if asked else ("nproc_per_node",),
            f"{gpus} GPUs asked for, but {len(ids)} of {machine.name} are free",
            f"lower it to {len(ids)}, or wait until the others are free",
        )
    return NodeDevices(nproc_per_node=number, device_ids=ids[:gpus])


def check_no_gpus_wanted(job: JobSpec, facts: TargetFacts, machine: MachineFacts) -> None:
    """Raises ``KeyInputError`` where a job asks for GPUs of a machine that has none."""
    where = machine.name or f"target {facts.target}"
    if job.nproc_per_node == "gpu":
        raise KeyInputError(
            ("nproc_per_node",),
            f"gpu, but {where} has no GPU",
            "set nproc_per_node to a number of processes, or run where GPUs are",
        )
    if job.resources.gpus and machine.device_ids is not None:
        raise KeyInputError(
            ("resources", "gpus"),
            f"{job.resources.gpus} on each node, but {where} has no GPU that the job could use",
            "--set resources.gpus=0 to train on the CPU, or run where GPUs are",
        )


def check_capacity(job: JobSpec, facts: TargetFacts, nproc_per_node: int) -> None:
    """Raises ``KeyInputError`` where one machine would have to start too many processes."""
    nodes, agents_too, capacity = job.nnodes.max, nproc_per_node + 1, facts.machine.capacity
    if capacity is None or nodes * agents_too <= capacity.processes:
        return
    most = capacity.processes
    fits = most // agents_too
    fix = f"at most nnodes: {fits}" if fits else f"at most nproc_per_node: {most - 1}"
    raise KeyInputError(
        ("nnodes",) if nodes > 1 else ("nproc_per_node",),
        f"{nodes} nodes x ({nproc_per_node} workers + 1 agent) are {nodes * agents_too} processes; "
        f"this machine can start about {most} ({capacity.why})",
        f"{fix} with --on {facts.target}, or a target of several machines: --on TARGET",
    )


def _cpu_workers(job: JobSpec, machine: MachineFacts) -> int:
    if isinstance(job.nproc_per_node, int):
        return job.nproc_per_node
    if job.nproc_per_node == "cpu":
        return machine.cpu_count
    return max(1, machine.cpu_count // job.nnodes.max)
