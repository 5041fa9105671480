"""Processes that a program starts by itself: ddp_spawn, ddp_fork and ddp_notebook."""

import json
import multiprocessing
import os
import sys

import pytest
import torch
from torch import nn

from fabric_train.errors import InputError
from fabric_train.launch.processes import launch_processes
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import find_place
from fabric_train.worker_env import WorkerEnv, parse_worker_env
from tests.fabric_train.forked import world_of

NAMES = ("ddp_spawn", "ddp_fork", "ddp_notebook")


def fork(function, *arguments, processes=2):
    strategy = make_strategy("ddp_fork", {"processes": processes})
    return launch_processes(function, WorkerEnv(), *arguments, strategy=strategy)


def train(fabric, env, strategy):
    """Three steps on a linear model; the same global batch at any world size."""
    torch.manual_seed(0)
    place = find_place(fabric.device, env.world)
    model, _ = strategy.setup(nn.Linear(4, 1), lambda w: torch.optim.SGD(w, lr=0.1), place)
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    losses = []
    for number in range(3):
        part = inputs[place.rank :: place.world_size]
        with strategy.sync(last=True):
            loss = model(part).square().mean()
            strategy.backward(loss)
        strategy.finish()
        strategy.step(number)
        losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean").item())
    return losses, strategy.gather_weights()


def test_forked_processes_train_what_one_process_trains():
    torch.randn(500, 500) @ torch.randn(500, 500)  # threads that the copies do not have
    losses, weights = fork(train, make_strategy("ddp"))
    alone, expected = fork(train, make_strategy("ddp"), processes=1)
    assert losses == pytest.approx(alone, rel=1e-6)
    torch.testing.assert_close(weights, expected)


def test_variables_that_another_job_left_behind_change_nothing(monkeypatch):
    stale = {"MASTER_ADDR": "203.0.113.1", "MASTER_PORT": "1", "NODE_RANK": "3", "GROUP_RANK": "2"}
    stale |= {"SLURM_NTASKS": "8", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "5"}
    for name, value in stale.items():
        monkeypatch.setenv(name, value)
    assert fork(lambda fabric, env: (fabric.global_rank, fabric.world_size)) == (0, 2)
    assert os.environ["MASTER_PORT"] == "1"
    assert "LOCAL_RANK" not in os.environ


def test_an_error_of_any_rank_is_raised_as_it_was_there():
    def refuse(fabric, env):
        if fabric.global_rank == 1:
            raise InputError("no such data", "make them")
        fabric.barrier()

    with pytest.raises(InputError, match=r"(?s)no such data.*fix: make them"):
        fork(refuse)
    assert not multiprocessing.active_children()


def test_an_error_of_the_script_comes_with_its_traceback():
    def divide(fabric, env):
        return 1 // fabric.global_rank

    with pytest.raises(Exception, match=r"(?s)in divide.*ZeroDivisionError"):
        fork(divide)


@pytest.mark.parametrize("name", NAMES)
def test_under_the_launcher_and_torchrun_they_are_refused_with_the_reason(name):
    world = world_of(4, local=2)
    with pytest.raises(InputError, match=r"(?s)4 processes.*start its own again.*--strategy ddp,"):
        launch_processes(print, WorkerEnv(world=world), strategy=make_strategy(name))


def test_spawn_is_refused_in_a_notebook(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(InputError, match="strategy ddp_notebook"):
        launch_processes(print, WorkerEnv(), strategy=make_strategy("ddp_spawn"))


def test_a_copy_of_a_process_that_uses_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InputError, match="restart the kernel"):
        launch_processes(print, WorkerEnv(), strategy=make_strategy("ddp_notebook"))


def test_launch_fabric_says_which_function_starts_processes():
    from fabric_train.launch.fabric import launch_fabric

    with pytest.raises(InputError, match=r"fabric_train\.launch_processes"):
        launch_fabric(WorkerEnv(), accelerator="cpu", strategy=make_strategy("ddp_fork"))


def test_the_program_starts_processes_and_trains_what_one_trains(processes, finish):
    options = ("--reduction", "exact", "--virtual_shards", "2", "--max_steps", "3")
    forked = ("--strategy", "ddp_fork", "--strategy_options.processes", "2")
    runs = {
        "one": processes.fork("-m", "train", *options, RUN_DIR="one"),
        "two": processes.fork("-m", "train", *options, *forked, RUN_DIR="two"),
    }
    metrics = {}
    for name, run in runs.items():
        code, out, err = finish(run)
        assert code == 0, err
        metrics[name] = json.loads((processes.folder / name / "metrics.json").read_text())
    assert "ddp_fork, exact reduction over gloo" in out
    assert [metrics[name]["world_size"] for name in ("one", "two")] == [1, 2]
    assert metrics["one"]["weights_sha256"] == metrics["two"]["weights_sha256"]


def test_the_program_tells_a_mistake_in_few_lines(processes, finish):
    spawned = ("--strategy", "ddp_fork", "--virtual_shards", "1")
    code, _, err = finish(processes.fork("-m", "train", *spawned))
    assert code == 2
    assert "2 processes cannot share virtual_shards=1" in err
    assert len(err.splitlines()) == 2


def test_what_a_start_leaves_behind_is_no_wrong_environment():
    fork(lambda fabric, env: None)
    assert parse_worker_env(os.environ).world is None
