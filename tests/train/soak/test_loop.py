"""The training in this process: one device, few steps."""

import pytest
import torch

from fabric_train.checkpointing.snapshot import read_tensors
from fabric_train.errors import DivergedError
from fabric_train.worker_env import WorkerEnv
from tests.train.test_loop import checkpoints, env
from train.config import TrainConfig
from train.loop import train


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_training_without_a_number_for_a_loss_is_an_error_without_a_checkpoint(env, precision):
    with pytest.raises(DivergedError, match="--lr"):
        train(TrainConfig(lr=1e30, warmup_steps=0, precision=precision), env)
    assert all(
        torch.isfinite(read_tensors(path)["model.0.weight"]).all() for path in checkpoints(env)
    )
    assert not (env.run_dir / "metrics.json").exists()
