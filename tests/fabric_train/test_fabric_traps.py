"""What Fabric and torch do where one would not expect it, and that this project does not step in.

Each first test shows the fact in Fabric itself: if it fails, Fabric has changed, and the guard that
the second test shows may go.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

import fabric_train
import train
from fabric_train.errors import InputError, WorldMismatchError
from fabric_train.fabric import launch_fabric
from fabric_train.sampler import GlobalBatchSampler
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place
from fabric_train.worker_env import WorkerEnv, parse_worker_env
from tests.fabric_train.forked import run_forked, torchrun_variables

PACKAGES = [Path(package.__file__).parent for package in (fabric_train, train)]
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


def calls_of(name):
    """Every call of a method or function of that name, in both packages."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = node.func
                    if getattr(called, "attr", getattr(called, "id", "")) == name:
                        yield path, node


# -- variables -------------------------------------------------------------------------------------


def test_fabric_obeys_stale_lt_variables_and_refuses_to_launch_with_lt_cli_used(monkeypatch):
    monkeypatch.setenv("LT_DEVICES", "2")
    monkeypatch.setenv("LT_ACCELERATOR", "cpu")
    assert Fabric()._connector._devices_flag == 2
    # One device: with more the constructor would wait for the others.
    monkeypatch.setenv("LT_DEVICES", "1")
    monkeypatch.setenv("LT_CLI_USED", "1")
    with pytest.raises(RuntimeError, match="launched through the CLI"):
        Fabric(devices=1).launch()


@pytest.mark.parametrize("name", ["LT_CLI_USED", "LT_DEVICES", "LT_STRATEGY"])
def test_stale_lt_variables_are_refused_by_name(name):
    with pytest.raises(InputError, match=f"(?s){name} set.*unset these variables"):
        parse_worker_env({name: "1"})


def test_fabric_follows_a_batch_systems_variables(monkeypatch):
    for name, value in BATCH_SYSTEMS.items():
        monkeypatch.setenv(name, value)
    fabric = Fabric(accelerator="cpu", devices=2, num_nodes=1)
    assert isinstance(fabric._connector.cluster_environment, SLURMEnvironment)


def launch_here():
    """What Fabric makes of this process' environment."""
    import os

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


def test_fabric_refuses_a_number_of_nodes_that_was_fixed_before_a_resize(monkeypatch):
    for name, value in torchrun_variables(0, 2, 29500, nodes=1).items():
        monkeypatch.setenv(name, value)
    fabric = Fabric(
        accelerator="cpu",
        devices=2,
        num_nodes=2,  # as it was with four workers
        strategy=DDPStrategy(process_group_backend="gloo"),
        plugins=[TorchElasticEnvironment()],
    )
    with pytest.raises(ValueError, match="does not match the world size"):
        fabric.launch()


def test_the_number_of_nodes_follows_the_world_of_each_start():
    for size in (2, 1):
        assert [told[:2] for told in run_forked(launch_here, size, group=False)] == [
            (rank, size) for rank in range(size)
        ]


def launch_uneven():
    """Three workers on two nodes: one on the first, two on the second."""
    import os

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


# -- data ------------------------------------------------------------------------------------------


def read_with_fabric():
    """The samples that a rank reads in two epochs, and again after a restart."""
    fabric = Fabric(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        plugins=[TorchElasticEnvironment()],
    )
    fabric.launch()
    data = TensorDataset(torch.arange(5))

    def start():
        loader = DataLoader(data, batch_size=1, sampler=SequentialSampler(data))
        shuffled = DataLoader(data, batch_size=1, shuffle=True)
        ordered, shuffled = fabric.setup_dataloaders(loader, shuffled)
        return [[int(each[0]) for each in made] for made in (ordered, shuffled, shuffled)]

    return start(), start()


def test_fabric_pads_a_ranks_samples_and_begins_its_epochs_anew_after_a_restart():
    told = run_forked(read_with_fabric, 2, group=False)
    ordered = [rank[0][0] for rank in told]
    # Five samples in two shares of three: one is read twice.
    assert sorted(ordered[0] + ordered[1]) == [0, 0, 1, 2, 3, 4]
    for first, second in told:
        assert first[1] != first[2]
        assert second[1] == first[1]  # the restart reads the first epoch again


def test_our_samplers_are_never_replaced_by_fabrics():
    calls = list(calls_of("setup_dataloaders"))
    assert len(calls) >= 2
    for path, call in calls:
        given = {word.arg: word.value for word in call.keywords}
        value = given.get("use_distributed_sampler")
        assert isinstance(value, ast.Constant), path
        assert value.value is False, path
    # Fabric calls it, where there is one, with a count that starts at 0 after every restart.
    assert not hasattr(GlobalBatchSampler, "set_epoch")


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["save_checkpoint", "save", "load", "load_checkpoint"])
def test_fabrics_checkpoints_which_a_crash_can_damage_are_not_used(name):
    for path, call in calls_of(name):
        called = ast.unparse(call.func)
        assert "fabric" not in called.lower(), f"{path}:{call.lineno} {called}"
        assert "checkpoint" not in name, f"{path}:{call.lineno} {called}"


# -- gradients -------------------------------------------------------------------------------------


def syncs_of(model):
    return {
        state.reduce_grads
        for module in model.modules()
        if (group := getattr(module, "_get_fsdp_state", None))
        and (state := group()._fsdp_param_group)
    }


def block_sync_with_fabric():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    fully_shard(model)
    control = ModelParallelStrategy(lambda model, mesh: model)._backward_sync_control
    before = syncs_of(model)
    with control.no_backward_sync(model, enabled=False):
        within = syncs_of(model)
    return before, within, syncs_of(model)


def test_fabric_leaves_gradient_sync_off_after_a_block_that_was_not_to_switch_it_off():
    assert run_forked(block_sync_with_fabric, 1) == [({True}, {True}, {False})]


def step_with_a_static_graph():
    model = DistributedDataParallel(nn.Linear(2, 1), static_graph=True)
    try:
        with model.no_sync():
            model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def step_with_ours():
    torch.manual_seed(0)
    strategy = make_strategy("ddp")
    strategy.setup(
        nn.Linear(2, 1),
        lambda weights: torch.optim.SGD(weights, lr=0.1),
        Place(
            device=torch.device("cpu"),
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            local_world_size=dist.get_world_size(),
        ),
        virtual_shards=2 * dist.get_world_size(),
    )
    for last in (False, True):
        with strategy.sync(last=last):
            strategy.backward(strategy.model(torch.ones(1, 2)).sum())
    return strategy.bare.weight.grad.tolist()


def test_a_static_graph_fails_where_the_first_step_has_several_micro_batches():
    told = run_forked(step_with_a_static_graph, 1)
    assert "INTERNAL ASSERT" in told[0] or "static" in told[0], told


def test_our_first_step_may_have_several_micro_batches():
    assert run_forked(step_with_ours, 2) == [[[1.0, 1.0]]] * 2
    for path, call in [*calls_of("DistributedDataParallel"), *calls_of("DDPStrategy")]:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert given.get("static_graph") in (None, "False"), path
