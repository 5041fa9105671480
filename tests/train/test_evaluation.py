"""The scores on the test set, over ranks with unequal shares."""

import os

import pytest
import torch
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from fabric_train.launch.fabric import launch_fabric, leave_world
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import find_place
from fabric_train.worker_env import parse_worker_env
from tests.fabric_train.forked import run_forked
from train.config import TrainConfig
from train.evaluation import evaluate
from train.metrics import Scores
from train.workloads import charlm

SAMPLES = 2 * charlm.TEST_BATCH_SIZE + 1
"""The first of two ranks has a batch of one sample more."""


def score(name: str, count: int) -> Scores:
    scores = score_in_world(name, count)
    leave_world()  # when the model is gone
    return scores


def score_in_world(name: str, count: int) -> Scores:
    env = parse_worker_env(os.environ)
    strategy, config = make_strategy(name), TrainConfig(workload="charlm")
    fabric = launch_fabric(env, accelerator="cpu", strategy=strategy)
    torch.manual_seed(0)
    strategy.setup(charlm.build_model(config), AdamW, find_place(fabric.device, env.world))
    samples = TensorDataset(*(tensor[:count] for tensor in charlm.load(config)[1].tensors))
    return evaluate(fabric, strategy, samples, charlm)


@pytest.mark.parametrize(
    ("name", "count"), [("ddp", SAMPLES), ("fsdp", SAMPLES), ("ddp", 1), ("fsdp", 1)]
)
def test_each_sample_counts_once_where_one_rank_has_a_batch_more(name, count):
    (alone,) = run_forked(score, 1, name, count, group=False)
    assert alone["test_samples"] == count
    # Under fsdp the second rank would wait for ever for the first's last batch.
    for scores in run_forked(score, 2, name, count, group=False):
        assert scores == pytest.approx(alone, rel=1e-6)
