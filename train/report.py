"""What rank 0 says at the start and at the end: the hardware table, the summary, metrics.json."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from lightning.fabric import Fabric

from fabric_train.durable import write_file
from fabric_train.worker_env import METRICS_FILE, WorkerEnv
from train.config import TrainConfig

Metrics = dict[str, float | int | str]
"""The flat content of metrics.json."""


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """Where one rank computes; ``name`` describes the device in words."""

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
    """Versions of torch and of what it was built with."""
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
        ("strategy", format_strategy(devices[0], env, config.reduction)),
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


def format_strategy(device: RankDevice, env: WorkerEnv, reduction: str) -> str:
    """How gradients are combined, and by what."""
    method = "exact reduction" if reduction == "exact" else "ddp"
    if env.world is None:
        return "single device" if reduction == "fast" else f"single device, {method}"
    return f"{method} over {'nccl' if device.device.startswith('cuda') else 'gloo'}"


def format_devices(devices: Sequence[RankDevice]) -> list[str]:
    """One line for the ranks of each host, so that many nodes stay readable."""
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
    """How the nodes found each other, and where rank 0 listens."""
    if env.world is None:
        return "none, one device without a launcher"
    backend = env.rdzv_backend or "backend not given"
    endpoint = f" at {env.rdzv_endpoint}" if env.rdzv_endpoint else ""
    restarts = f", restart {env.world.restart_count}" if env.world.restart_count else ""
    master = f"{env.world.master_addr}:{env.world.master_port}"
    return f"{backend}{endpoint}, rank 0 at {master}{restarts}"


def format_summary(metrics: Metrics) -> str:
    """The last lines of a run."""
    bits = metrics.get("test_bits_per_character")
    per_character = f", {bits:.3f} bits per character" if bits is not None else ""
    return (
        f"test accuracy {metrics['test_accuracy']:.4f}, test loss {metrics['test_loss']:.4f}"
        f"{per_character} "
        f"({metrics['test_samples']} samples)\n"
        f"trained {metrics['steps']} steps in {metrics['fit_s']:.1f} s "
        f"({metrics['samples_per_s']:,.0f} samples/s), {metrics['duration_s']:.1f} s in all\n"
        f"checkpoint {metrics['checkpoint']}"
    )


def write_metrics(folder: Path, metrics: Mapping[str, float | int | str]) -> None:
    """Replaces the run folder's metrics.json as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(metrics, indent=2, allow_nan=False).encode() + b"\n"
    write_file(folder / METRICS_FILE, lambda file: file.write(content))
