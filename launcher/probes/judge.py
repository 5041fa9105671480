"""What follows from the nodes' answers. Pure: answers in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.probes.finding import Finding, failed, ok, warning

Facts = Mapping[str, Any]
"""What ``probes/program.py`` wrote of one node."""
Nodes = Mapping[int, Facts]

LEAST_SHM_BYTES = 1 << 30
"""Data loaders with worker processes and NCCL both exchange through shared memory."""
LEAST_FREE_BYTES = 10 << 30
SLOW_BYTES_PER_S = {"gloo": 50e6, "nccl": 1e9}
"""Below a tenth of what 10 Gbit/s Ethernet carries, or 10 Gbit/s itself where GPUs wait."""
SAME_EVERYWHERE = ("python", "torch", "nccl")
BUSY_MIB = 500
LOOPBACK = ("127.", "::1")


def judge_nodes(nodes: Nodes, *, meets_others: bool) -> Iterator[Finding]:
    """Each node by itself, then what must be equal on all.

    ``meets_others``: nodes find each other by name or address, so that a name of this machine
    that leads to loopback matters.
    """
    for index, facts in sorted(nodes.items()):
        where = f"node {index}"
        yield ok("python, torch", where, _versions(facts))
        yield from _judge_folder(facts, where)
        yield from _judge_memory(facts, where)
        yield from _judge_gpus(facts, where)
        if meets_others:
            yield from _judge_name(facts, where)
    yield from _judge_equal(nodes)


def judge_shared(shared: Mapping[int, bool]) -> Iterator[Finding]:
    """Whether all nodes see the same checkpoint folder."""
    alone = [index for index, sees in sorted(shared.items()) if not sees]
    for index in alone:
        yield failed(
            "shared checkpoints",
            f"node {index}",
            "does not see what node 0 wrote into checkpoint_dir",
            "set checkpoint_dir of the job to a folder that is mounted on all nodes",
        )
    if shared and not alone:
        yield ok("shared checkpoints", "all nodes", "one folder")


def judge_all_reduce(measured: Mapping[str, Any] | None, world: str) -> Finding:
    """How fast the whole group exchanges gradients over the job's own rendezvous."""
    check = "all-reduce"
    if not measured or not measured["rates"]:
        return failed(check, world, "did not finish", "see the rows above, and the run's output")
    best = max(measured["rates"], key=lambda rate: float(rate["bytes_per_s"]))
    latency_us = measured["rates"][0]["took_s"] * 1e6
    found = (
        f"{measured['backend']}: {best['bytes_per_s'] / 1e6:.0f} MB/s at "
        f"{best['bytes'] / 1e6:.0f} MB, {latency_us:.0f} us for {measured['rates'][0]['bytes']} B"
    )
    alone = best["bytes_per_s"] == 0
    if alone or best["bytes_per_s"] >= SLOW_BYTES_PER_S.get(measured["backend"], 0):
        return ok(check, world, found)
    return warning(check, world, found, "set NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME in env")


def _versions(facts: Facts) -> str:
    nccl = f", NCCL {facts['nccl']}" if facts["nccl"] else ""
    return f"Python {facts['python']}, torch {facts['torch']}{nccl}"


def _judge_folder(facts: Facts, where: str) -> Iterator[Finding]:
    check, free = "checkpoint folder", facts["checkpoint_free_bytes"]
    if facts["checkpoint_error"]:
        yield failed(
            check,
            where,
            f"cannot be written: {facts['checkpoint_error']}",
            "chown the folder that checkpoint_dir names, or name another one",
        )
    elif free is not None and free < LEAST_FREE_BYTES:
        yield warning(check, where, f"{_gib(free)} free", "free space, or name another folder")
    else:
        yield ok(check, where, "can be written" + (f", {_gib(free)} free" if free else ""))


def _judge_memory(facts: Facts, where: str) -> Iterator[Finding]:
    shm, memlock = facts["shm_bytes"], facts["memlock_bytes"]
    if shm is not None and shm < LEAST_SHM_BYTES:
        yield warning("/dev/shm", where, f"{_gib(shm)}", "resources: {shm: 2Gi} in the job")
    elif shm is not None:
        yield ok("/dev/shm", where, _gib(shm))
    if facts["infiniband"]:
        devices = ", ".join(facts["infiniband"])
        if memlock is not None:
            yield failed(
                "memlock", where, f"limited, with {devices}", "resources: {rdma: true} in the job"
            )
        else:
            yield ok("memlock", where, f"unlimited, for {devices}")


def _judge_gpus(facts: Facts, where: str) -> Iterator[Finding]:
    for number, gpu in enumerate(facts["gpus"]):
        used, total = gpu["memory.used"], gpu["memory.total"]
        found = f"{gpu['name']}, driver {gpu['driver_version']}, {used} of {total} MiB used"
        errors = gpu.get("ecc.errors.uncorrected.volatile.total", "0")
        place = f"{where}, GPU {number}"
        if errors.isdigit() and int(errors) > 0:
            fix = f"nvidia-smi --gpu-reset -i {number} as root, or take the node out"
            yield failed("GPU", place, f"{found}, {errors} uncorrected ECC errors", fix)
        elif used.isdigit() and int(used) > BUSY_MIB:
            yield warning("GPU", place, found, "nvidia-smi names the processes that hold it")
        else:
            yield ok("GPU", place, found)


def _judge_name(facts: Facts, where: str) -> Iterator[Finding]:
    addresses = facts["addresses"]
    if not addresses:
        yield warning("own name", where, f"{facts['host']} has no address", "add it to /etc/hosts")
    elif all(address.startswith(LOOPBACK) for address in addresses):
        yield warning(
            "own name",
            where,
            f"{facts['host']} leads to {', '.join(addresses)}",
            f"give {facts['host']} the node's own address in /etc/hosts",
        )


def _judge_equal(nodes: Nodes) -> Iterator[Finding]:
    for key in SAME_EVERYWHERE:
        values = {index: facts[key] for index, facts in sorted(nodes.items())}
        if len(set(values.values())) > 1:
            usual = max(set(values.values()), key=list(values.values()).count)
            odd = ", ".join(f"node {i} has {v}" for i, v in values.items() if v != usual)
            fix = f"use one image, or install {key} {usual} there"
            yield failed(f"same {key}", "all nodes", f"{odd}, the others {usual}", fix)
    yield from _judge_equal_gpus(nodes)


def _judge_equal_gpus(nodes: Nodes) -> Iterator[Finding]:
    look: Callable[[Facts], list[str]] = lambda facts: [gpu["name"] for gpu in facts["gpus"]]  # noqa: E731
    kinds = {index: look(facts) for index, facts in sorted(nodes.items())}
    if len({tuple(kind) for kind in kinds.values()}) > 1:
        found = "; ".join(f"node {i}: {', '.join(k) or 'none'}" for i, k in kinds.items())
        yield warning("same GPUs", "all nodes", found, "the slowest GPU sets the pace of all")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
