"""Fabric, built from the world that torchrun describes and checked against it: CPU or GPU, one
thread on CPUs, equal nodes."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy

from fabric_train.errors import InputError, WorldMismatchError
from fabric_train.launch.precision import Precision, build_fabric, set_precision
from fabric_train.strategies.strategy import Strategy
from fabric_train.worker_env import OMP_NUM_THREADS, WorkerEnv, World

Accelerator = Literal["auto", "cpu", "cuda"]

# Lightning announces every process that joins. Rank-zero messages go to whichever of these two
# packages was imported last.
for package in ("lightning.fabric", "lightning.pytorch"):
    logging.getLogger(package).setLevel(logging.WARNING)


def launch_fabric(
    env: WorkerEnv,
    *,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    strategy: Strategy | None = None,
) -> Fabric:
    """Fabric with its process group; without torchrun, Fabric for one device and no group.

    Blocks until all workers of the world are there. Raises InputError if ``strategy`` cannot run in
    this world, and WorldMismatchError if Fabric built another world than ``env`` describes.
    """
    world = env.world
    chosen = choose_accelerator(accelerator, world)
    if strategy is None:
        strategy = Strategy()
    else:
        set_precision(strategy, precision, chosen)
    strategy.check(world, chosen)
    if chosen == "cpu" and env.omp_num_threads is None:
        use_one_thread()
    if world is None:
        # Explicit, because Fabric would follow variables that a batch system left behind.
        fabric = build_fabric(precision, chosen, LightningEnvironment(), devices=1)
    else:
        fabric = build_fabric(
            precision,
            chosen,
            TorchElasticEnvironment(),
            devices=world.local_world_size,
            num_nodes=world.num_nodes,
            strategy=strategy.build_fabric_strategy(chosen),
        )
    fabric.launch()
    check_world(fabric, world)
    return fabric


def use_one_thread() -> None:
    """Limits this process to one CPU thread, as torchrun limits each of several workers.

    Otherwise the result depends on the number of cores, and on a busy machine waiting threads make
    small models several times slower.
    """
    torch.set_num_threads(1)
    # Otherwise Fabric would set it, and torch's threads, from the node's number of cores.
    os.environ[OMP_NUM_THREADS] = "1"


def build_ddp(
    accelerator: Literal["cpu", "cuda"],
    start_method: Literal["popen", "spawn", "fork"] = "popen",
    backend: str | None = None,
) -> DDPStrategy:
    """Fabric's DDP, for its process group and for models that a loop passes to ``fabric.setup``.

    ``backend``: the process group's, if the accelerator's usual one is not enough.
    """
    return DDPStrategy(
        start_method=start_method,
        process_group_backend=backend or ("nccl" if accelerator == "cuda" else "gloo"),
        gradient_as_bucket_view=True,
        # No static_graph: with it a first step under no_sync fails an assertion of torch.
        # A broadcast would hang if the ranks' shares of the test set differ by a batch.
        forward_sync_buffers=False,
    )


def choose_accelerator(accelerator: Accelerator, world: World | None) -> Literal["cpu", "cuda"]:
    """``cuda`` or ``cpu``; raises InputError if a node has fewer CUDA devices than workers."""
    devices = torch.cuda.device_count()
    if accelerator == "cpu" or (accelerator == "auto" and not devices):
        return "cpu"
    wanted = world.local_world_size if world else 1
    if devices < wanted:
        raise InputError(
            f"this node has {wanted} workers, but {devices} CUDA devices are visible",
            f"--accelerator cpu, or nproc_per_node {devices}" if devices else "--accelerator cpu",
        )
    return "cuda"


def check_world(fabric: Fabric, world: World | None) -> None:
    """Raises WorldMismatchError unless Fabric and its process group agree with the environment.

    Without this check ``Fabric(accelerator="cpu")`` under torchrun trains a separate model in each
    worker, each as rank 0, and ends with exit code 0.
    """
    expected = (world.rank, world.local_rank, world.world_size) if world else (0, 0, 1)
    built = (fabric.global_rank, fabric.local_rank, fabric.world_size)
    group = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if built != expected or group != (expected[0], expected[2]):
        raise WorldMismatchError(
            f"the environment says rank {expected[0]} of {expected[2]}, but Fabric built "
            f"rank {built[0]} of {built[2]} over a process group of {group[1]}: "
            "the workers would train separate models"
        )
    if dist.is_initialized():
        check_nodes(expected[1], world.local_world_size if world else 1)


def check_nodes(local_rank: int, local_world_size: int) -> None:
    """Raises WorldMismatchError unless every node has the same number of workers.

    Fabric cannot express another world, and a node's group would have the wrong members. Blocks;
    all ranks must call it.
    """
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, (local_rank, local_world_size))
    sizes = [size for _, size in places]
    if len(set(sizes)) > 1:
        raise WorldMismatchError(
            f"nodes have different numbers of workers: {', '.join(map(str, sizes))} by rank. "
            "Start each with the same nproc_per_node"
        )
    if any(local != rank % sizes[0] for rank, (local, _) in enumerate(places)):
        raise WorldMismatchError(
            "the ranks of a node are not neighbours: their local ranks are "
            + ", ".join(str(local) for local, _ in places)
        )


def leave_world() -> None:
    """Ends the process group; nothing may refer to a model wrapped by Fabric any more.

    DistributedDataParallel's reducer is freed with the interpreter's lock held. If it holds the
    last reference to a gloo group, the group's threads are joined under that lock while they wait
    for it, and the process hangs at its end (torch 2.13; within a few tries after a barrier).

    Call it only after success: after an error the other ranks may never arrive here.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
