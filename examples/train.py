"""A plain torch.distributed loop that resumes, and stops with a checkpoint when it is asked to.

    launcher run job.yaml        # command: [examples/train.py, 200], checkpoint_dir: checkpoints
    torchrun --nproc-per-node 2 examples/train.py 200

The argument is the number of steps. What comes from this project is imported in one place.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train import (
    EXIT_PREEMPTED,
    Continuity,
    GlobalBatchSampler,
    Interval,
    PreemptedError,
    Saver,
    TrainState,
    digest_weights,
    exit_on_sigterm,
    open_ledger,
    parse_worker_env,
)

BATCH = 120
"""Of all processes together. Equal parts for 1 to 6, 8, 10 and 12 of them."""


def main(steps: int) -> None:
    env = parse_worker_env(os.environ)
    exit_on_sigterm(env.node_dir)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, targets = torch.randn(500, 20), torch.randn(500, 3)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    wrapped = DistributedDataParallel(model)
    state = TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))
    sampler = GlobalBatchSampler(
        size=500,
        global_batch_size=BATCH,
        virtual_shards=world_size,
        rank=rank,
        world_size=world_size,
        seed=0,
    )
    saver = Saver(env.checkpoint_dir or Path("checkpoints"), interval=Interval(seconds=60))
    continuity = Continuity(env, state, saver, open_ledger(env))
    continuity.resume()
    first = state.step
    while state.step < steps:
        for shard in sampler.shards:
            indices = sampler.read_shard(state.step, shard)
            nn.functional.mse_loss(wrapped(inputs[indices]), targets[indices]).backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        continuity.after_step(lambda: None)
    continuity.finish()
    if rank == 0:
        print(f"steps {first} to {state.step}, weights {digest_weights(model)}", flush=True)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except PreemptedError:
        os._exit(EXIT_PREEMPTED)  # the other ranks may be gone, so wait for nothing
    # Not within main: DDP's reducer must be freed first, or the process may hang at its end.
    dist.destroy_process_group()
