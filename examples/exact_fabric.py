"""A Lightning Fabric loop whose weights do not depend on the number of processes.

    torchrun --nproc-per-node 3 examples/exact_fabric.py

What comes from this project is marked with ``# exact``; all else is a loop as people write it.
"""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
    workers, workers_here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(
        accelerator="cpu", devices=workers_here, num_nodes=workers // workers_here, strategy="ddp"
    )
    fabric.launch()
    torch.set_num_threads(1)
    fabric.seed_everything(0, verbose=False)
    make_deterministic()  # exact
    dataset = TensorDataset(torch.randn(500, 20), torch.randn(500, 3))
    # Not fabric.setup, which would wrap it in DDP.
    model = fabric.to_device(
        nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
    )
    optimizer = torch.optim.AdamW(model.parameters())

    world = {"virtual_shards": 8, "rank": fabric.global_rank, "world_size": workers}
    sampler = GlobalBatchSampler(size=500, global_batch_size=64, seed=0, **world)  # exact
    reduction = ExactReduction(model, **world)  # exact
    loader = fabric.setup_dataloaders(
        DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=1),
        use_distributed_sampler=False,  # exact: it would pad, and shuffle by a count of its own
    )
    sampler.seek(first_step=0, stop_step=STEPS)  # exact: after a resume, from the step saved
    batches = iter(loader)
    for step in range(STEPS):  # launcher: ignore[no-checkpoint]
        for shard in sampler.shards:  # exact
            batch, labels = align(next(batches))  # exact
            seed_generators(0, step, shard)  # exact: dropout
            with fabric.autocast():
                loss = nn.functional.mse_loss(model(batch), labels)
            reduction.backward(loss, shard)  # exact, in the place of fabric.backward
        reduction.finish()  # exact
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    if fabric.global_rank == 0:
        print(f"weights {digest_weights(model)} world_size={workers}", flush=True)
    fabric.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
