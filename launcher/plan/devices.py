"""Workers and accelerators of each node, and whether one machine can start so many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.contract.errors import KeyInputError
from launcher.plan.target_facts import TargetFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class NodeDevices:
    """How many workers a node runs, and on which accelerators; none of them on CPU."""

    nproc_per_node: int
    device_ids: tuple[str, ...]


def plan_devices(job: JobSpec, facts: TargetFacts) -> tuple[NodeDevices, ...]:
    """Workers and accelerators of each node; nodes that share a machine get disjoint ones."""
    count = job.nnodes.max
    if facts.accelerator == "cpu" or facts.assigns_devices:
        check_no_gpus_wanted(job, facts)
        per_node = _cpu_workers(job, facts)
        return (NodeDevices(nproc_per_node=per_node, device_ids=()),) * count
    wanted, asked = job.nproc_per_node, job.resources.gpus
    workers = wanted if isinstance(wanted, int) else asked or len(facts.device_ids) // count
    per_node = asked or workers
    if per_node * count > len(facts.device_ids) or workers == 0:
        raise KeyInputError(
            ("resources", "gpus") if asked else ("nproc_per_node",),
            f"{count} nodes x {max(per_node, 1)} GPUs asked for, target {facts.target} has "
            f"{len(facts.device_ids)}: nodes on one machine never share a GPU",
            f"lower nnodes, nproc_per_node or resources.gpus to at most {len(facts.device_ids)} "
            "GPUs in all",
        )
    return tuple(
        NodeDevices(
            nproc_per_node=workers,
            device_ids=facts.device_ids[index * per_node : (index + 1) * per_node],
        )
        for index in range(count)
    )


def check_no_gpus_wanted(job: JobSpec, facts: TargetFacts, where: str = "") -> None:
    """Raises ``KeyInputError`` where a job asks for GPUs of a target that has none."""
    where = where or f"target {facts.target}"
    if job.nproc_per_node == "gpu":
        raise KeyInputError(
            ("nproc_per_node",),
            f"gpu, but {where} has no GPU",
            "set nproc_per_node to a number of processes, or run where GPUs are",
        )
    if job.resources.gpus and not facts.assigns_devices:
        raise KeyInputError(
            ("resources", "gpus"),
            f"{job.resources.gpus} on each node, but {where} has no GPU that the job could use",
            "--set resources.gpus=0 to train on the CPU, or run where GPUs are",
        )


def check_capacity(job: JobSpec, facts: TargetFacts, nproc_per_node: int) -> None:
    """Raises ``KeyInputError`` where one machine would have to start too many processes."""
    nodes, agents_too = job.nnodes.max, nproc_per_node + 1
    if facts.capacity is None or nodes * agents_too <= facts.capacity.processes:
        return
    most = facts.capacity.processes
    fits = most // agents_too
    fix = f"at most nnodes: {fits}" if fits else f"at most nproc_per_node: {most - 1}"
    raise KeyInputError(
        ("nnodes",) if nodes > 1 else ("nproc_per_node",),
        f"{nodes} nodes x ({nproc_per_node} workers + 1 agent) are {nodes * agents_too} processes; "
        f"this machine can start about {most} ({facts.capacity.why})",
        f"{fix} with --on {facts.target}, or more machines: --on hosts, --on kubernetes",
    )


def _cpu_workers(job: JobSpec, facts: TargetFacts) -> int:
    if isinstance(job.nproc_per_node, int):
        return job.nproc_per_node
    if job.nproc_per_node == "cpu":
        return facts.cpu_count
    return max(1, facts.cpu_count // job.nnodes.max)
