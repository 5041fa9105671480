"""Ten steps with Lightning Fabric: needs torch, lightning and torchrun, nothing of this project."""

import os

import torch
from lightning.fabric import Fabric


def train(fabric: Fabric) -> float:
    """The loss after ten steps towards an all-zero target."""
    fabric.seed_everything(0, verbose=False)
    bare_model = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(bare_model, torch.optim.SGD(bare_model.parameters(), lr=0.1))
    torch.manual_seed(fabric.global_rank)
    for _ in range(10):
        loss = model(torch.randn(16, 8, device=fabric.device)).square().mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    return loss.item()


def main() -> None:
    workers, workers_here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(
        accelerator="auto", devices=workers_here, num_nodes=workers // workers_here, strategy="ddp"
    )
    fabric.launch()

    members = fabric.all_reduce(torch.ones(1, device=fabric.device), reduce_op="sum")
    if int(members) != workers:
        raise RuntimeError(f"{int(members)} of {workers} workers are in the group")

    loss = train(fabric)
    if fabric.global_rank == 0:
        print(f"done world_size={fabric.world_size} loss={loss:.4f}", flush=True)
    fabric.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
