"""How many threads torch computes with after ``launch_fabric`` in a world of one."""

import os

import torch

from fabric_train.launch.fabric import launch_fabric
from fabric_train.strategies import make_strategy
from fabric_train.worker_env import parse_worker_env

os.environ.pop("OMP_NUM_THREADS", None)  # as under torchrun with one worker
launch_fabric(parse_worker_env(os.environ), accelerator="cpu", strategy=make_strategy("ddp"))
print(f"threads {torch.get_num_threads()}, for others {os.environ['OMP_NUM_THREADS']}", flush=True)
