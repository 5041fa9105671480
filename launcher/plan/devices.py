"""How many workers each node has and which GPUs, and whether one machine has these GPUs and can
start that many processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.contract.errors import KeyInputError
from launcher.plan.target_facts import MachineFacts, TargetFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


CROWDED = 4
"""Workers for each core of one machine; people try with 2."""


@dataclass(frozen=True, kw_only=True)
class NodeDevices:
    """How many workers a node runs, and on which accelerators (on CPU: none)."""

    nproc_per_node: int
    device_ids: tuple[str, ...]


def plan_devices(job: JobSpec, facts: TargetFacts) -> tuple[NodeDevices, ...]:
    """Workers and accelerators of each node; nodes that share a machine get disjoint ones."""
    if not facts.nodes:
        return _share(job, facts, _chosen(job, facts, facts.machine), job.nnodes.max)
    machines = (_chosen(job, facts, node.machine or facts.machine) for node in facts.nodes)
    return tuple(node for machine in machines for node in _share(job, facts, machine, 1))


def _chosen(job: JobSpec, facts: TargetFacts, machine: MachineFacts) -> MachineFacts:
    """The machine with only the GPUs that the key ``devices`` names."""
    devices, there = job.devices, machine.device_ids
    if devices is None or not (devices.ids or devices.unused):
        return machine
    where = machine.name or f"target {facts.target}"
    if there is None and devices.ids:
        what = f"{devices}, but the scheduler of {where} gives out GPUs by number"
        raise KeyInputError(("devices",), what, f"--devices {devices.count}")
    if there is None:
        return machine
    if not there:
        what, fix = f"{devices}, but {where} has no GPU", f"--devices {devices.count}: processes"
        raise KeyInputError(("devices",), what, fix)
    unused = tuple(gpu for gpu in there if gpu not in machine.used_ids)
    if devices.unused:
        if (devices.count or 0) > len(unused):
            what = f"{devices}, but of {where}'s GPUs {', '.join(unused) or 'none'} are unused"
            fix = f"wait, or --devices {devices.count} to share with other processes"
            raise KeyInputError(("devices",), what, fix)
        return replace(machine, device_ids=unused)
    if missing := [gpu for gpu in devices.ids if gpu not in there]:
        what = f"{devices}, but {where} has {', '.join(there)} and no {', '.join(missing)}"
        raise KeyInputError(
            ("devices",), what, f"--devices {len(devices.ids)} takes the first ones"
        )
    return replace(machine, device_ids=devices.ids)


def _share(
    job: JobSpec, facts: TargetFacts, machine: MachineFacts, count: int
) -> tuple[NodeDevices, ...]:
    """The ``count`` nodes of one machine."""
    wanted, wanted_gpus, ids = job.nproc_per_node, job.resources.gpus, machine.device_ids
    if ids is None or facts.accelerator == "cpu":
        _check_no_gpus_wanted(job, facts, machine)
        cores = machine.cpu_workers
        workers = cores if wanted == "cpu" else wanted_gpus or max(1, cores // count)
        workers = wanted if isinstance(wanted, int) else workers
        return (NodeDevices(nproc_per_node=workers, device_ids=()),) * count
    number = machine.cpu_workers if wanted == "cpu" else wanted_gpus or len(ids) // count
    workers = wanted if isinstance(wanted, int) else number
    gpus = wanted_gpus or workers
    if gpus * count > len(ids) or workers == 0:
        free, gpus, key = len(ids), max(gpus, 1), _key_of_gpus(job)
        lower = f"lower nproc_per_node or {'.'.join(key)} to {free}"
        fix = f"{lower}, or wait for the others"
        if machine.name:
            what = f"{gpus} GPUs asked for, but {free} of {machine.name} are free"
        elif count == 1:
            what = f"{gpus} GPUs asked for, but this machine has {free}"
            fix = lower
        else:
            what = f"{count} nodes of {gpus} GPUs need {count * gpus}, but this machine has {free}"
            fix = f"lower nnodes, nproc_per_node or {'.'.join(key)}: nodes never share a GPU"
        raise KeyInputError(key if wanted_gpus else ("nproc_per_node",), what, fix)
    shares = (ids[index * gpus : (index + 1) * gpus] for index in range(count))
    return tuple(NodeDevices(nproc_per_node=workers, device_ids=share) for share in shares)


def _check_no_gpus_wanted(job: JobSpec, facts: TargetFacts, machine: MachineFacts) -> None:
    """Raises ``KeyInputError`` if a job asks for GPUs of a machine that has none."""
    where, wanted_gpus = machine.name or f"target {facts.target}", job.resources.gpus
    if machine.device_ids is None and wanted_gpus:
        return
    if job.nproc_per_node == "gpu":
        raise KeyInputError(
            ("nproc_per_node",),
            f"gpu, but {where} has no GPU",
            "set nproc_per_node to a number of processes, or run where GPUs are",
        )
    if wanted_gpus:
        key = _key_of_gpus(job)
        on_cpu = "leave it out" if key == ("devices",) else "--set resources.gpus=0"
        raise KeyInputError(
            key,
            f"{wanted_gpus} on each node, but {where} has no GPU that the job could use",
            f"{on_cpu} to train on the CPU, or run where GPUs are",
        )


def _key_of_gpus(job: JobSpec) -> tuple[str, ...]:
    """The key that says how many GPUs each node has: ``devices`` sets ``resources.gpus``."""
    is_devices = job.devices is not None and job.devices.count == job.resources.gpus
    return ("devices",) if is_devices else ("resources", "gpus")


def check_capacity(job: JobSpec, facts: TargetFacts, nproc_per_node: int) -> None:
    """Raises ``KeyInputError`` if one machine would have to start too many processes."""
    nodes, agents_too, most = job.nnodes.max, nproc_per_node + 1, facts.machine.most_processes
    if most is None or nodes * agents_too <= most:
        return
    fits = most // agents_too
    fix = f"at most nnodes: {fits}" if fits else f"at most nproc_per_node: {most - 1}"
    raise KeyInputError(
        ("nnodes",) if nodes > 1 else ("nproc_per_node",),
        f"{nodes} nodes x ({nproc_per_node} workers + 1 agent) are {nodes * agents_too} processes; "
        f"this machine can start about {most} ({facts.machine.cores})",
        f"{fix} with --on {facts.target}, or a target of several machines: --on TARGET",
    )


def describe_crowd(workers: int, machine: MachineFacts) -> str:
    """A line about many more workers than cores where all run on one machine; else empty."""
    if machine.most_processes is None or workers <= CROWDED * machine.cpu_count:
        return ""
    return (
        f"{workers} workers share {machine.cores}: "
        "they train slowly, and each holds torch and the model"
    )
