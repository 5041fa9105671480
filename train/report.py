"""The hardware table that rank 0 prints at the start."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from lightning.fabric import Fabric

from fabric_train.worker_env import WorkerEnv
from train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """Where a rank computes; ``name`` describes the device."""

    host: str
    device: str
    name: str


def read_rank_device(fabric: Fabric, env: WorkerEnv) -> RankDevice:
    """This rank's device and host."""
    node = f" (node {env.node_index})" if env.node_index is not None else ""
    if fabric.device.type == "cuda":
        name = torch.cuda.get_device_name(fabric.device)
    else:
        name = f"torch threads: {torch.get_num_threads()}"
    return RankDevice(host=socket.gethostname() + node, device=str(fabric.device), name=name)


def read_versions() -> str:
    """Versions of torch, CUDA and NCCL."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"
    return f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, NCCL {nccl}"


def format_hardware_table(
    config: TrainConfig,
    env: WorkerEnv,
    devices: Sequence[RankDevice],
    *,
    batch_size: int,
    virtual_shards: int,
    versions: str,
    checkpoint_dir: Path,
) -> str:
    """What the run computes on; ``devices`` in the order of ranks."""
    world_size = len(devices)
    rows = [
        ("accelerator", devices[0].device.partition(":")[0]),
        *(("devices", line) for line in format_devices(devices)),
        ("strategy", format_strategy(devices[0], env, config)),
        ("precision", config.precision),
        ("world size", str(world_size)),
        (
            "global batch",
            f"{batch_size} ({virtual_shards} virtual shards)",
        ),
        ("torch", versions),
        ("rendezvous", format_rendezvous(env)),
        ("checkpoints", str(checkpoint_dir)),
    ]
    return "\n".join(f"  {name:<13} {value}" for name, value in rows)


def format_strategy(device: RankDevice, env: WorkerEnv, config: TrainConfig) -> str:
    """How gradients are combined."""
    named = [] if config.strategy == "ddp" else [config.strategy]
    exact = ["exact reduction"] if config.reduction == "exact" else []
    if env.world is None:
        return ", ".join(["single device", *named, *exact])
    method = ", ".join([*named, *exact]) or "ddp"
    return f"{method} over {'nccl' if device.device.startswith('cuda') else 'gloo'}"


def format_devices(devices: Sequence[RankDevice]) -> list[str]:
    """One line for each host, with its ranks and devices."""
    lines = []
    for (host, name), group in groupby(
        enumerate(devices), lambda each: (each[1].host, each[1].name)
    ):
        ranks = list(group)
        first, last = ranks[0][0], ranks[-1][0]
        span = f"rank {first}" if first == last else f"ranks {first}-{last}"
        lines.append(f"{span} on {host}: {', '.join(rank.device for _, rank in ranks)} ({name})")
    return lines


def format_rendezvous(env: WorkerEnv) -> str:
    """The rendezvous, and where rank 0 listens."""
    if env.world is None:
        return "none, one device without a launcher"
    backend = env.rdzv_backend or "backend not given"
    endpoint = f" at {env.rdzv_endpoint}" if env.rdzv_endpoint else ""
    restarts = f", restart {env.world.restart_count}" if env.world.restart_count else ""
    master = f"{env.world.master_addr}:{env.world.master_port}"
    return f"{backend}{endpoint}, rank 0 at {master}{restarts}"
