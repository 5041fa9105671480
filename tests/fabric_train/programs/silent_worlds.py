"""What plain Fabric makes of torchrun's two workers on CPU, and what ``check_world`` says to it."""

import os

from lightning.fabric import Fabric

from fabric_train.errors import WorldMismatchError
from fabric_train.fabric import check_world
from fabric_train.worker_env import parse_worker_env

world = parse_worker_env(os.environ).world
fabric = Fabric(accelerator="cpu")
fabric.launch()
verdict = "accepted"
try:
    check_world(fabric, world)
except WorldMismatchError as error:
    verdict = f"refused: {error}"
# One write: the two workers share the stream.
print(
    f"worker {world.rank} of {world.world_size} is rank {fabric.global_rank} "
    f"of {fabric.world_size}: {verdict}\n",
    end="",
    flush=True,
)
