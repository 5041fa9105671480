"""A plain DistributedDataParallel loop that goes on in the same process when a node is lost.

    launcher run examples/heal_ddp.py --nnodes 1:2 --nproc-per-node 1

Kill one of the nodes: the other makes the next step, and lets the node in again when it is back.
What comes from this project is marked with ``# heal``; all else is a loop as people write it.
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train import Worlds  # heal

STEPS = 1000


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # the losses printed are equal with any number of ranks
    inputs = torch.randn(512, 20)
    targets = inputs[:, :3].sin()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters())

    for world in (worlds := Worlds()):  # heal  # launcher: ignore[no-checkpoint]
        with world:  # heal
            world.share(model, optimizer)  # heal
            rank, world_size = dist.get_rank(), dist.get_world_size()
            print(f"rank {rank} of {world_size}", flush=True)
            replica = DistributedDataParallel(model)
            while (step := worlds.step or 0) < STEPS:  # heal
                with world.step():  # heal
                    torch.manual_seed(step)
                    mine = torch.randint(512, (64,))[rank::world_size]
                    loss = nn.functional.mse_loss(replica(inputs[mine]), targets[mine])
                    loss.backward()
                    mean = loss.detach() / world_size
                    dist.all_reduce(mean)
                    optimizer.step()
                    optimizer.zero_grad()
                if rank == 0:
                    print(f"step {step + 1} loss {mean:.6f}", flush=True)
                time.sleep(0.02)  # so that there is time to kill a node


if __name__ == "__main__":
    main()
