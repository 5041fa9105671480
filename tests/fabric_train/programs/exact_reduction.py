"""Trains a small model with dropout on virtual shards, in raw torch: rank 0 prints the digest."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from fabric_train.randomness import seed_generators
from fabric_train.reduction import ExactReduction, align
from fabric_train.sampler import GlobalBatchSampler
from fabric_train.state import digest_weights

SHARDS, STEPS = 6, 5


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seed_generators(0)
    data = torch.rand(50, 11)
    model = nn.Sequential(nn.Linear(11, 33), nn.GELU(), nn.Dropout(0.3), nn.Linear(33, 5))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    sampler = GlobalBatchSampler(
        size=50, global_batch_size=24, virtual_shards=SHARDS, rank=rank, world_size=world, seed=0
    )
    reduction = ExactReduction(model, virtual_shards=SHARDS, rank=rank, world_size=world)
    for step in range(STEPS):
        for shard in sampler.shards:
            (inputs,) = align([data[sampler.read_shard(step, shard)]])
            seed_generators(0, step, shard)
            reduction.backward(model(inputs).square().mean(), shard)
        reduction.finish()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    if rank == 0:
        print(digest_weights(model))
    dist.barrier()
    dist.destroy_process_group()


main()
