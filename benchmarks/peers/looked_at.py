"""A training whose steps are counted in ``steps`` of RUN_DIR, and told in its ledger."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import torch

from fabric_train.loop.ledger import Loaded, TrainStarted, open_ledger
from fabric_train.worker_env import parse_worker_env

if __name__ == "__main__":
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.eye(320))
    optimizer = torch.optim.SGD([weight], lr=1e-9)
    ledger = open_ledger(parse_worker_env(os.environ))
    ledger.write(TrainStarted(world_size=1, generation=None))
    ledger.write(Loaded(step=0))
    counter = os.open(Path(os.environ["RUN_DIR"], "steps"), os.O_WRONLY | os.O_CREAT)
    for step in itertools.count(1):
        loss = (weight @ weight @ weight).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ledger.on_step(step, 32, loss.item)
        os.pwrite(counter, b"%012d" % step, 0)
