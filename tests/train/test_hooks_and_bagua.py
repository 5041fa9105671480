"""Digits by every compressed and decentralised strategy, in real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fabric_train.strategies import make_strategy
from fabric_train.worker_env import parse_worker_env
from tests.fabric_train.forked import ForkedError, run_forked
from train.config import parse_config
from train.loop import train

CASES: dict[str, list[str]] = {
    "fp16": [],
    "powersgd": ["--strategy_options.start_powerSGD_iter=10"],
    "bagua:gradient_allreduce": [],
    "bagua:bytegrad": [],
    "bagua:decentralized": ["--strategy_options.peer_selection_mode=shift_one"],
    "bagua:low_precision_decentralized": [],
    "bagua:qadam": ["--strategy_options.warmup_steps=30"],
    "bagua:async": ["--strategy_options.sync_interval_ms=20"],
}
"""Options by strategy."""


def options(name: str, folder: Path, epochs: int) -> list[str]:
    # In steps, because a checkpoint brings the weights of decentralised ranks together.
    common = ["--accelerator=cpu", f"--epochs={epochs}", "--checkpoint_every_steps=15"]
    common += [f"--checkpoint_dir={folder}"]
    return ["--strategy", name, *CASES[name], *common, "--checkpoint_async=false"]


def train_digits(name: str, folder: Path, epochs: int, kill_at: int | None = None) -> Any:
    """The metrics of one rank; rank 1 dies in the backward pass of step ``kill_at``."""
    if kill_at is not None and os.environ["RANK"] == "1":
        kind = type(make_strategy(name))
        backward, steps = kind.backward, iter(range(1000))

        def dying(self: Any, loss: torch.Tensor, *arguments: Any, **more: Any) -> None:
            if next(steps) == kill_at:
                os._exit(9)
            backward(self, loss, *arguments, **more)

        kind.backward = dying  # type: ignore[method-assign]
    return train(parse_config(options(name, folder, epochs)), parse_worker_env(os.environ))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_digits_are_learned(name, ranks, tmp_path):
    found = run_forked(train_digits, ranks, name, tmp_path, 6, group=False, limit_s=240)
    assert found[0]["test_accuracy"] > 0.93
    assert len({each["weights_sha256"] for each in found}) == 1


@pytest.mark.parametrize(
    "name",
    [
        name if name == "powersgd" else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
        if name != "bagua:async"
    ],
)
def test_a_worker_killed_in_a_backward_pass_costs_no_loss(name, tmp_path):
    go = {"group": False, "limit_s": 120}
    whole = run_forked(train_digits, 2, name, tmp_path / "whole", 3, **go)
    with pytest.raises(ForkedError) as caught:
        run_forked(train_digits, 2, name, tmp_path / "killed", 3, 20, **go)
    assert "exit code 9" in str(caught.value)
    again = run_forked(train_digits, 2, name, tmp_path / "killed", 3, **go)
    assert again[0]["resumed_from_step"] == 15
    # PowerSGD magnifies rounding, by which a resumed process differs on some processors: 3e-5 was
    # seen. Without its memory the loss is another by 2e-3.
    rel = 3e-4 if name == "powersgd" else 1e-5
    assert again[0]["train_loss"] == pytest.approx(whole[0]["train_loss"], rel=rel)
    assert again[0]["test_loss"] == pytest.approx(whole[0]["test_loss"], rel=max(rel, 1e-4))


@pytest.mark.slow
def test_async_ends_soon_after_a_worker_was_killed_and_resumes(tmp_path):
    go = {"group": False, "limit_s": 60}
    with pytest.raises(ForkedError) as caught:
        run_forked(train_digits, 2, "bagua:async", tmp_path, 3, 20, **go)
    assert "exit code 9" in str(caught.value)
    assert "hung" not in str(caught.value)
    again = run_forked(train_digits, 2, "bagua:async", tmp_path, 3, **go)
    assert again[0]["resumed_from_step"] == 15
    assert again[0]["test_accuracy"] > 0.9
