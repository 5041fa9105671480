"""A loop of one's own, called as most people call theirs, beside a package that is called so too.

Stops by itself in the middle of its first start, after a checkpoint.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fabric_train
from fabric_train import (
    EXIT_PREEMPTED,
    GlobalBatchSampler,
    Interval,
    Preemption,
    Saver,
    Wish,
    digest_weights,
    exit_on_sigterm,
    parse_worker_env,
)

STEPS = 8


def main() -> None:
    env = parse_worker_env(os.environ)
    exit_on_sigterm(env.node_dir)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs = torch.rand(64, 4, generator=torch.Generator().manual_seed(0))
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = GlobalBatchSampler(
        size=64, global_batch_size=16, virtual_shards=2, rank=rank, world_size=world_size, seed=0
    )
    assert env.checkpoint_dir
    saver = Saver(env.checkpoint_dir, interval=Interval(steps=2), generation=env.generation)
    preemption = Preemption(env.node_dir if os.environ["LOCAL_RANK"] == "0" else None)
    resumed = saver.resume(model, optimizer)
    preemption.announce()
    step = first = resumed.step if resumed else 0
    for step in range(first, min(first + STEPS // 2, STEPS)):
        for shard in sampler.shards:
            model(inputs[sampler.read_shard(step, shard)]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if saver.is_due(step + 1):
            saver.save(step + 1, model, optimizer)
        assert preemption.look() is Wish.NOTHING
    saver.settle()
    if rank == 0:
        library = Path(fabric_train.__file__).parent
        print(f"steps {first} to {step + 1}, weights {digest_weights(model.module)}, {library}")
    dist.destroy_process_group()


if __name__ == "__main__":
    assert EXIT_PREEMPTED == 143
    main()
