"""A Lightning Fabric loop that goes on in the same process when a node is lost.

    launcher run examples/heal_fabric.py --nnodes 1:2 --nproc-per-node 1

Kill one of the nodes: the other makes the next step, and lets the node in again when it is back.
What comes from this project is marked with ``# heal``; all else is a loop as people write it, with
Fabric built for each group of nodes. Fabric takes the process group that is there.
"""

import os
import time

import torch
from lightning.fabric import Fabric
from torch import nn

from fabric_train import Worlds  # heal

STEPS = 1000


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # the losses printed are equal with any number of ranks
    inputs = torch.randn(512, 20)
    targets = inputs[:, :3].sin()
    bare = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    bare_optimizer = torch.optim.AdamW(bare.parameters())

    for world in (worlds := Worlds()):  # heal  # launcher: ignore[no-checkpoint]
        with world:  # heal
            world.share(bare, bare_optimizer)  # heal
            workers, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = workers // here
            fabric = Fabric(accelerator="cpu", strategy="ddp", devices=here, num_nodes=nodes)
            fabric.launch()
            fabric.print(f"world size {workers}")
            model, optimizer = fabric.setup(bare, bare_optimizer)
            while (step := worlds.step or 0) < STEPS:  # heal
                with world.step():  # heal
                    torch.manual_seed(step)
                    mine = torch.randint(512, (64,))[fabric.global_rank :: workers]
                    loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
                    fabric.backward(loss)
                    mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
                    optimizer.step()
                    optimizer.zero_grad()
                fabric.print(f"step {step + 1} loss {mean:.6f}", flush=True)
                time.sleep(0.02)  # so that there is time to kill a node


if __name__ == "__main__":
    main()
