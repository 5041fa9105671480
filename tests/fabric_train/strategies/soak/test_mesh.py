"""Tensor parallel and pipelines: equal to one process, and one checkpoint for all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fabric_train.strategies import make_strategy
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.one_process import (
    cut_batch,
    differ,
    draw_text,
    load_here,
    mean_loss,
    save_here,
    set_up,
    train_alone,
    train_steps,
)
from tests.fabric_train.strategies.test_mesh import build, train

TOLERANCE = 1e-9
LOSS_TOLERANCE = 1e-6


def check_equal(name: str, options: dict[str, Any], processes: int, steps: int = 3) -> None:
    losses, weights = train_alone(steps, build)
    model = build()
    model.load_state_dict(weights)
    expected = model.eval()(draw_text(99)[0][:5])
    for rank in run_forked(train, processes, name, options, steps):
        assert rank["losses"] == pytest.approx(losses, abs=LOSS_TOLERANCE)
        assert differ(rank["weights"], weights) < TOLERANCE
        torch.testing.assert_close(rank["outputs"], expected, atol=TOLERANCE, rtol=0)


CASES: list[Any] = [
    ("tp", {}, 2),
    ("tp", {"tensor_size": 2}, 4),
    ("fsdp+tp", {"unit_elements": 1000}, 4),
    ("pipeline", {}, 2),
    ("pipeline", {"schedule": "interleaved_1f1b"}, 2),
    ("pipeline", {"pipeline_size": 2, "schedule": "gpipe"}, 4),
]


@pytest.mark.parametrize(("name", "options", "processes"), CASES)
def test_losses_and_weights_are_those_of_one_process(name, options, processes):
    check_equal(name, options, processes)


def train_and_save(name: str, options: dict[str, Any], folder: Path) -> list[float]:
    strategy = make_strategy(name, options)
    set_up(strategy, build)
    losses = train_steps(strategy, 0, 2)
    save_here(strategy, folder, 2)
    return losses


def load_and_train(name: str, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    strategy = make_strategy(name, options)
    set_up(strategy, build)
    step = load_here(strategy, folder)
    losses = train_steps(strategy, step, 4)
    return {"losses": losses, "weights": strategy.gather_weights()}


WAYS: dict[str, tuple[str, dict[str, Any], int]] = {
    "one": ("ddp", {}, 1),
    "ddp": ("ddp", {}, 2),
    "tp": ("tp", {}, 2),
    "tp of 4": ("tp", {}, 4),
    "fsdp+tp": ("fsdp+tp", {"unit_elements": 1000}, 4),
    "pipeline": ("pipeline", {}, 2),
    "interleaved": ("pipeline", {"schedule": "interleaved_1f1b"}, 2),
}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("ddp", "pipeline"),
        ("interleaved", "tp of 4"),
        ("pipeline", "fsdp+tp"),
    ],
)
def test_a_checkpoint_of_one_way_goes_on_in_another(tmp_path, first, then):
    losses, weights = train_alone(4, build)
    name, options, processes = WAYS[first]
    for found in run_forked(train_and_save, processes, name, options, tmp_path):
        assert found == pytest.approx(losses[:2], abs=LOSS_TOLERANCE)
    name, options, processes = WAYS[then]
    for result in run_forked(load_and_train, processes, name, options, tmp_path):
        assert result["losses"] == pytest.approx(losses[2:], abs=LOSS_TOLERANCE)
        assert differ(result["weights"], weights) < TOLERANCE


@pytest.mark.parametrize("name", ["tp", "pipeline"])
def test_bfloat16_is_used_where_autocast_says_so(name):
    losses, _ = train_alone(2)

    def train() -> list[float]:
        strategy = make_strategy(name)
        set_up(strategy)
        found = []
        for step in range(2):
            batch = cut_batch(strategy, step)
            autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
            loss = lambda outputs, targets: mean_loss(outputs.float(), targets)  # noqa: E731
            found.append(strategy.run_step(replace(batch, autocast=autocast, loss=loss)).item())
            strategy.step(step)
        return found

    for found in run_forked(train, 2):
        assert found == pytest.approx(losses, abs=1e-2)
        assert found != pytest.approx(losses, abs=1e-6)
