"""The probe's answers, and what ``doctor`` says of Python, GPUs, disks and clocks by them. Pure."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.doctor.finding import Finding, Status, failed, ok, warning

LEAST_BYTES_PER_S = {"gloo": 50e6, "nccl": 1e9}
"""10 Gbit/s Ethernet carries 1.25e9: gloo should reach a small part of it, NCCL most of it."""
LEAST_FREE_BYTES = 10 << 30
"""Of the checkpoint folder's disk."""
LEAST_SHM_BYTES = 1 << 30
MOST_USED_MIB = 500
"""Of a GPU's memory, before the job begins."""


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU in nvidia-smi's words: memory in MiB, ``[N/A]`` for what it does not know."""

    index: str
    name: str
    driver_version: str
    bus_id: str
    memory_used: str
    memory_total: str
    ecc_errors: str


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """What a node is and has. None means unknown; for ``memlock_bytes`` it means no limit.

    ``xids`` are (PCI address, number); ``infiniband`` says whether a device has an active port.
    """

    python: str
    torch: str | None
    cuda: str | None
    nccl: str | None
    shm_bytes: int | None
    memlock_bytes: int | None
    checkpoint_free_bytes: int | None
    checkpoint_error: str
    gpus: tuple[GpuFacts, ...]
    xids: tuple[tuple[str, int], ...]
    infiniband: Mapping[str, bool]
    verbs_devices: bool
    verbs_library: bool
    nccl_env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class MessageRate:
    """One all-reduce of ``bytes`` bytes; the rate is the bus bandwidth of a ring."""

    bytes: int
    took_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """All-reduces of the whole group, from small to large messages."""

    backend: str
    rates: tuple[MessageRate, ...]


Nodes = Mapping[str, NodeAnswer]
"""Answers by what people call the nodes: ``node 0``, or a host's name."""

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 69})
"""Errors that a program makes; the GPU is sound after them (NVIDIA, XID Errors)."""


def judge_nodes(nodes: Nodes) -> Iterator[Finding]:
    """Each node by itself, then what must be equal on all."""
    for where, facts in nodes.items():
        yield from judge_environment(facts, where)
        yield from judge_machine(facts, where)
    yield from judge_equal(nodes)
    yield from judge_equal_gpus(nodes)


def judge_environment(
    facts: NodeAnswer, where: str, python: str = "an image or a Python that has it"
) -> Iterator[Finding]:
    """What each container has for itself: versions, limits, folders.

    ``python`` is part of the fix: another Python to use.
    """
    check = "python, torch"
    if facts.torch:
        cuda = f", CUDA {facts.cuda}" if facts.cuda else ""
        nccl = f", NCCL {facts.nccl}" if facts.nccl else ""
        yield ok(check, where, f"Python {facts.python}, torch {facts.torch}{cuda}{nccl}")
    else:
        fix = f"install torch there, or {python}"
        yield failed(check, where, f"Python {facts.python} has no torch", fix)
    yield from _judge_folder(facts, where)
    yield from _judge_memory(facts, where)


def judge_machine(facts: NodeAnswer, where: str) -> Iterator[Finding]:
    """What all containers of a machine share: its GPUs and its InfiniBand."""
    for gpu in facts.gpus:
        yield _judge_gpu(gpu, facts, where)
    if facts.gpus and facts.infiniband:
        yield _judge_infiniband(facts, where)


def judge_all_reduce(measured: AllReduce | None, world: str) -> Finding:
    """How fast the whole group exchanges gradients over the job's own rendezvous."""
    check = "all-reduce"
    if not measured or not measured.rates:
        return failed(check, world, "did not finish", "see the rows above, and the run's output")
    # The largest message's rate: a link that passes small ones at full speed may still be slow.
    first, last = measured.rates[0], max(measured.rates, key=lambda rate: rate.bytes)
    measurements = (
        f"{measured.backend}: {last.bytes_per_s / 1e6:.0f} MB/s per node at "
        f"{last.bytes / 1e6:.1f} MB, {first.took_s * 1e6:.0f} us for {first.bytes} B"
    )
    if last.bytes_per_s == 0:
        return ok(check, world, f"{measured.backend}: one worker, which sends nothing")
    if last.bytes_per_s >= LEAST_BYTES_PER_S.get(measured.backend, 0):
        return ok(check, world, measurements)
    return warning(check, world, measurements, "set NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME in env")


def is_slow(measured: AllReduce | None) -> bool:
    """Whether an all-reduce was slow for its backend, or did not finish."""
    return judge_all_reduce(measured, "").status is not Status.OK


def _judge_folder(facts: NodeAnswer, where: str) -> Iterator[Finding]:
    check, free = "checkpoint folder", facts.checkpoint_free_bytes
    if facts.checkpoint_error:
        fix = "chown the folder that checkpoint_dir names, or name another one"
        if os.strerror(errno.EROFS) in facts.checkpoint_error:
            fix = "dmesg -T | tail there tells why; mount -o remount,rw, or name another folder"
        yield failed(check, where, f"cannot be written: {facts.checkpoint_error}", fix)
    elif free is not None and free < LEAST_FREE_BYTES:
        yield warning(check, where, f"{_gib(free)} free", "free space, or name another folder")
    else:
        yield ok(check, where, "can be written" + (f", {_gib(free)} free" if free else ""))


def _judge_memory(facts: NodeAnswer, where: str) -> Iterator[Finding]:
    shm, memlock = facts.shm_bytes, facts.memlock_bytes
    # Data loaders with worker processes and NCCL both exchange through shared memory.
    if shm is not None and shm < LEAST_SHM_BYTES:
        # Without containers the job's own limit has no effect.
        fix = "resources: {shm: 2Gi} in the job; on a host: mount -o remount,size=2G /dev/shm"
        yield warning("/dev/shm", where, _gib(shm), fix)
    elif shm is not None:
        yield ok("/dev/shm", where, _gib(shm))
    devices = ", ".join(facts.infiniband)
    if devices and memlock is not None:
        fix = (
            "resources: {rdma: true} in the job; without containers: '* - memlock unlimited' "
            "in /etc/security/limits.d/rdma.conf, and a new log-in"
        )
        yield failed("memlock", where, f"{memlock >> 10} KiB, with {devices}", fix)
    elif devices:
        yield ok("memlock", where, f"unlimited, for {devices}")


def _judge_gpu(gpu: GpuFacts, facts: NodeAnswer, where: str) -> Finding:
    state = (
        f"{gpu.name}, driver {gpu.driver_version}, {gpu.memory_used} of {gpu.memory_total} MiB used"
    )
    place = f"{where}, GPU {gpu.index}"
    fix = f"nvidia-smi --gpu-reset -i {gpu.index} as root, or take the node out"
    if gpu.ecc_errors.isdigit() and int(gpu.ecc_errors) > 0:
        return failed("GPU", place, f"{state}, {gpu.ecc_errors} uncorrected ECC errors", fix)
    # nvidia-smi writes 00000000:3B:00.0, and the kernel's log 0000:3b:00.
    bus_id = re.sub(r"^0000(?=[0-9a-f]{4}:)|\.\d+$", "", gpu.bus_id.lower())
    xids = [str(n) for bus, n in facts.xids if bus == bus_id and n not in APPLICATION_XIDS]
    if xids:
        # The log goes back to the boot: a GPU that was reset since then may be sound again.
        what = f"{state}, XID {', '.join(xids)} in the kernel's log"
        return warning("GPU", place, what, f"dmesg -T | grep Xid there; if it is new: {fix}")
    if gpu.memory_used.isdigit() and int(gpu.memory_used) > MOST_USED_MIB:
        return warning("GPU", place, state, "nvidia-smi names the processes that hold it")
    return ok("GPU", place, state)


def _judge_infiniband(facts: NodeAnswer, where: str) -> Finding:
    """Whether NCCL would use InfiniBand, or silently fall back to sockets."""
    names = ", ".join(facts.infiniband)
    reasons = [
        (f"{names} not used: {variable}={value}", f"take {variable} out of env of the job")
        for variable, value in facts.nccl_env.items()
        if (variable, value) in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
    ]
    if not any(facts.infiniband.values()):
        reasons.append((f"no port of {names} is active", "ibstat there says why; is the cable in?"))
    if not facts.verbs_devices:
        fix = "resources: {rdma: true} in the job; without containers: modprobe ib_uverbs"
        reasons.append((f"{names} without /dev/infiniband", fix))
    if not facts.verbs_library:
        fix = "apt-get install libibverbs1 ibverbs-providers"
        reasons.append((f"{names} without libibverbs", fix))
    for why, fix in reasons:
        return warning("InfiniBand", where, f"{why}, so that NCCL falls back to sockets", fix)
    active = ", ".join(name for name, is_active in facts.infiniband.items() if is_active)
    return ok("InfiniBand", where, active)


def judge_equal(nodes: Nodes) -> Iterator[Finding]:
    """Versions that must be the same: else nodes fail together, or compute differently."""
    for key in ("python", "torch", "cuda", "nccl"):
        values = {where: getattr(facts, key) for where, facts in nodes.items()}
        if len(set(values.values())) > 1:
            usual = max(values.values(), key=list(values.values()).count)
            for where, odd in values.items():
                if odd != usual:
                    fix = f"use one image, or install {key} {usual} there"
                    yield failed(f"same {key}", where, f"has {odd}, others have {usual}", fix)


def judge_equal_gpus(nodes: Nodes) -> Iterator[Finding]:
    """One kind of accelerator on all nodes."""
    kinds = {where: tuple(gpu.name for gpu in facts.gpus) for where, facts in nodes.items()}
    if len(set(kinds.values())) > 1:
        models = "; ".join(f"{where}: {', '.join(kind) or 'none'}" for where, kind in kinds.items())
        yield warning("same GPUs", "all nodes", models, "the slowest GPU sets the pace of all")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
