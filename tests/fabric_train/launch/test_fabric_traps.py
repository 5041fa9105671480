"""Where Fabric and torch surprise people, this project does what they expect."""

import os

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from torch import nn

from fabric_train.errors import WorldMismatchError
from fabric_train.launch.fabric import check_world, launch_fabric
from fabric_train.strategies import make_strategy
from fabric_train.worker_env import WorkerEnv, parse_worker_env
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.one_process import place_here

BATCH_SYSTEMS = {
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "17",
    "SLURM_NODELIST": "a[1-2]",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMI_RANK": "1",
    "LSB_JOBID": "17",
    "LSB_DJOB_RANKFILE": "/nowhere",
    "JSM_NAMESPACE_SIZE": "2",
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "KUBERNETES_PORT": "tcp://10.0.0.1:443",
}


# -- variables -------------------------------------------------------------------------------------


def launch_here():
    """What Fabric makes of this process' environment."""
    env = parse_worker_env(os.environ)
    fabric = launch_fabric(env, accelerator="cpu", strategy=make_strategy("ddp"))
    return fabric.global_rank, fabric.world_size, type(fabric._connector.cluster_environment)


def test_torchruns_world_counts_whatever_batch_system_is_around():
    told = run_forked(launch_here, 2, group=False, environ=BATCH_SYSTEMS)
    assert told == [(rank, 2, TorchElasticEnvironment) for rank in range(2)]


def test_without_torchrun_there_is_one_device_whatever_batch_system_is_around(monkeypatch):
    for name, value in BATCH_SYSTEMS.items():
        monkeypatch.setenv(name, value)
    threads = torch.get_num_threads()
    try:
        fabric = launch_fabric(WorkerEnv(omp_num_threads=threads), accelerator="cpu")
    finally:
        torch.set_num_threads(threads)
    assert (fabric.global_rank, fabric.world_size) == (0, 1)


# -- worlds ----------------------------------------------------------------------------------------


def launch_plainly():
    fabric = Fabric(accelerator="cpu")
    fabric.launch()
    with pytest.raises(WorldMismatchError):
        check_world(fabric, parse_worker_env(os.environ).world)
    return fabric.global_rank, fabric.world_size


def test_fabric_by_itself_would_train_two_separate_worlds_and_that_is_refused():
    # The fact that check_world stands on: if this fails, Fabric has changed.
    assert run_forked(launch_plainly, 2, group=False) == [(0, 1)] * 2


def launch_uneven():
    """Three workers on two nodes: one on the first, two on the second."""
    rank = int(os.environ["RANK"])
    os.environ["LOCAL_WORLD_SIZE"] = "1" if rank in (0, 1) else "2"
    os.environ["LOCAL_RANK"] = "0" if rank in (0, 1) else str(rank - 2)
    try:
        return launch_here()
    except WorldMismatchError as error:
        return str(error)


def test_nodes_with_different_numbers_of_workers_are_refused():
    # Each node's own number divides the world, so that no worker can tell by itself.
    for told in run_forked(launch_uneven, 4, group=False):
        assert "nodes have different numbers of workers: 1, 1, 2, 2 by rank" in told


# -- gradients -------------------------------------------------------------------------------------


def step_with_ours():
    torch.manual_seed(0)
    strategy = make_strategy("ddp")
    strategy.setup(
        nn.Linear(2, 1),
        lambda weights: torch.optim.SGD(weights, lr=0.1),
        place_here(),
        virtual_shards=2 * dist.get_world_size(),
    )
    for last in (False, True):
        with strategy.sync(last=last):
            strategy.backward(strategy.model(torch.ones(1, 2)).sum())
    return strategy.bare.weight.grad.tolist()


def test_our_first_step_may_have_several_micro_batches():
    assert run_forked(step_with_ours, 2) == [[[1.0, 1.0]]] * 2
