"""Sharded trainings on GPUs."""

import json

import pytest
import torch

from fabric_train.worker_env import WorkerEnv
from train.config import parse_config
from train.loop import train


@pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: no CUDA device")
@pytest.mark.parametrize(
    "options",
    [(), ("--strategy_options.offload=true",), ("--precision=bf16-mixed",)],
    ids=["plain", "offload", "bf16"],
)
def test_on_gpus_the_scores_are_those_of_one_process(processes, finish, tmp_path, options):
    common = ("--workload=charlm", "--max_steps=12", "--virtual_shards=4", "--max_grad_norm=1")
    started = processes.start_torchrun(
        min(2, torch.cuda.device_count()),
        *("-m", "train", "--strategy=fsdp", "--accelerator=cuda", *common, *options),
        RUN_DIR=str(tmp_path),
    )
    code, _, err = finish(started)
    assert code == 0, err
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    config = parse_config([*common, "--accelerator=cpu"])
    alone = train(config, WorkerEnv(run_dir=tmp_path / "alone"))
    for score in ("train_loss", "test_loss"):
        assert metrics[score] == pytest.approx(alone[score], abs=0.02), score
