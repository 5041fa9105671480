"""A plain torch.distributed loop whose weights do not depend on the number of processes.

    torchrun --nproc-per-node 3 examples/exact_ddp.py

What comes from this project is marked with ``# exact``; all else is a loop as people write it.
"""

import torch
import torch._dynamo  # the optimizer would import it after the group was made, and keep that alive
import torch.distributed as dist
from torch import nn

from fabric_train import (  # exact
    ExactReduction,
    GlobalBatchSampler,
    align,
    digest_weights,
    make_deterministic,
    seed_generators,
)

STEPS = 12


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make_deterministic()  # exact
    inputs, targets = torch.randn(500, 20), torch.randn(500, 3)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters())

    world = {"virtual_shards": 8, "rank": rank, "world_size": world_size}
    sampler = GlobalBatchSampler(size=500, global_batch_size=64, seed=0, **world)  # exact
    reduction = ExactReduction(model, **world)  # exact, in the place of DistributedDataParallel
    for step in range(STEPS):  # launcher: ignore[no-checkpoint]
        for shard in sampler.shards:  # exact
            indices = sampler.read_shard(step, shard)  # exact
            batch, labels = align((inputs[indices], targets[indices]))  # exact
            seed_generators(0, step, shard)  # exact: dropout
            loss = nn.functional.mse_loss(model(batch), labels)
            reduction.backward(loss, shard)  # exact
        reduction.finish()  # exact
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    if rank == 0:
        print(f"weights {digest_weights(model)} world_size={world_size}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
