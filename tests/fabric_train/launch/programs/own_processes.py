"""A script that starts its own processes, each of which trains until it is ended."""

import sys
import time

from fabric_train import WorkerEnv, launch_processes, make_strategy


def train(fabric, env):
    fabric.barrier()
    print(f"rank {env.world.rank} of {env.world.world_size} in {fabric.world_size}\n", end="")
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    launch_processes(train, WorkerEnv(), strategy=make_strategy("ddp_fork", {"processes": 2}))
