"""Digits 5 to 9 for a network that has learned 0 to 4: frozen, then unfrozen, through faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabric_train.snapshot import read_tensors
from fabric_train.worker_env import WorkerEnv
from train.config import TrainConfig
from train.loop import train


def checkpoints(folder: Path) -> dict[int, set[str]]:
    return {
        int(path.name.split("-")[1]): set(read_tensors(path))
        for path in sorted(folder.glob("step-*"))
    }


def test_what_was_frozen_is_saved_only_once_it_is_trained(tmp_path, capsys):
    config = TrainConfig(
        workload="transfer", global_batch_size=32, unfreeze_at_step=5, max_steps=8,
        checkpoint_dir=tmp_path, checkpoint_every_steps=4, keep_checkpoints=9,
    )  # fmt: skip
    metrics = train(config, WorkerEnv())
    assert (metrics["steps"], metrics["resumed_from_step"]) == (8, 0)
    saved = checkpoints(tmp_path)
    assert sorted(saved) == [4, 5, 8]
    for step in (4, 5):
        assert not any("backbone" in name for name in saved[step])
    assert any(name.startswith("optimizer.state.backbone") for name in saved[8])
    print(capsys.readouterr().out)
