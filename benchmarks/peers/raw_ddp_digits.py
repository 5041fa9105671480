"""The digits training in raw DistributedDataParallel, without Fabric: the peer of ``step``.

Does the same work as ``python -m train``: model, data, micro-batches, order of the samples,
optimizer, learning rates and DDP settings are the same, and so is the loss, as a test compares.
Leaves out what is no part of a step: progress, checkpoints, resuming, evaluation. Each process is a
rank, in torchrun's environment.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext

import torch
import torch._dynamo  # before the process group: imported later, it keeps the group alive
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader

from fabric_train.sampling.sampler import GlobalBatchSampler
from train.config import TrainConfig
from train.schedule import Schedule, plan_schedule
from train.workloads import digits


def train(epochs: int, shards: int) -> dict[str, float]:
    """Trains on the CPU; the median step time and the last epoch's loss, on every rank."""
    config = TrainConfig(epochs=epochs)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(config.seed)
    train_set, _ = digits.load(config)
    sampler = GlobalBatchSampler(
        size=len(train_set),
        global_batch_size=config.global_batch_size,
        virtual_shards=shards,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        seed=config.seed,
    )
    loader = DataLoader(train_set, batch_size=None, sampler=sampler)
    model = DistributedDataParallel(
        digits.build_model(config),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )
    optimizer = AdamW(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    schedule = plan_schedule(config, epoch_samples=len(train_set), world_size=dist.get_world_size())
    step_times_s, train_loss = fit(model, optimizer, loader, sampler, schedule, shards)
    # Else one process may wait forever for a connection of gloo that the other has closed.
    dist.barrier()
    # The model's reducer would hold the group's last reference, and be freed with the interpreter's
    # lock held, for which the group's threads wait: the process would hang (torch 2.13).
    del model, optimizer
    dist.destroy_process_group()
    return {"median_step_s": statistics.median(step_times_s), "train_loss": train_loss}


def fit(
    model: DistributedDataParallel,
    optimizer: AdamW,
    loader: DataLoader[tuple[torch.Tensor, ...]],
    sampler: GlobalBatchSampler,
    schedule: Schedule,
    shards: int,
) -> tuple[list[float], float]:
    """Seconds between the ends of consecutive steps, and the mean loss of the last epoch."""
    step_times_s = []
    step = 0
    train_loss = torch.zeros(())
    last_step = time.monotonic()
    while step < schedule.stop_step:
        first_step, stop_step = step, schedule.end_of(schedule.epoch_of(step))
        sampler.seek(first_step=step, stop_step=stop_step)
        batches = iter(loader)
        weight = dist.get_world_size() / shards
        loss_sum = torch.zeros(())
        while step < stop_step:
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr_at(step)
            for shard in sampler.shards:
                inputs, targets = next(batches)
                last = shard == sampler.shards[-1]
                with nullcontext() if last else model.no_sync():
                    loss = cross_entropy(model(inputs), targets) * weight
                    loss.backward()
                loss_sum += loss.detach()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            now = time.monotonic()
            step_times_s.append(now - last_step)
            last_step = now
        train_loss = loss_sum / (stop_step - first_step)
        dist.all_reduce(train_loss, op=dist.ReduceOp.SUM)
        train_loss /= dist.get_world_size()
    return step_times_s, train_loss.item()
