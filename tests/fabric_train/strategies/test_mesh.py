"""Tensor parallel and pipelines: equal to one process, and one checkpoint for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fabric_train.strategies import make_strategy
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.one_process import (
    build_transformer,
    differ,
    draw_text,
    load_here,
    save_here,
    set_up,
    train_alone,
    train_steps,
)

TOLERANCE = 1e-9
"""Of weights and outputs in float64, where only the order of sums differs."""
LOSS_TOLERANCE = 1e-6
"""Of losses, which are added up in float32."""


def build() -> nn.Module:
    return build_transformer().double()


def train(name: str, options: dict[str, Any], steps: int) -> dict[str, Any]:
    strategy = make_strategy(name, options)
    set_up(strategy, build)
    losses = train_steps(strategy, 0, steps)
    strategy.bare.eval()
    with torch.no_grad():
        outputs = strategy.predict(draw_text(99)[0][:5])
    return {
        "losses": losses,
        "weights": strategy.gather_weights(),
        "outputs": outputs,
        "held": sum(weight.numel() for weight in strategy.bare.parameters()),
    }


def check_equal(name: str, options: dict[str, Any], processes: int, steps: int = 3) -> list[int]:
    losses, weights = train_alone(steps, build)
    model = build()
    model.load_state_dict(weights)
    expected = model.eval()(draw_text(99)[0][:5])
    for rank in (results := run_forked(train, processes, name, options, steps)):
        assert rank["losses"] == pytest.approx(losses, abs=LOSS_TOLERANCE)
        assert differ(rank["weights"], weights) < TOLERANCE
        torch.testing.assert_close(rank["outputs"], expected, atol=TOLERANCE, rtol=0)
    return [rank["held"] for rank in results]


@pytest.mark.parametrize(
    ("name", "options", "processes"),
    [
        ("tp", {}, 1),
        ("tp", {}, 2),
        ("tp", {}, 4),
        ("tp", {"tensor_size": 2}, 4),
        ("tp", {"tensor_size": 1}, 2),
        ("fsdp+tp", {}, 2),
        ("fsdp+tp", {}, 4),
        ("fsdp+tp", {"tensor_size": 4, "units": "whole"}, 4),
        ("fsdp+tp", {"tensor_size": 2, "unit_elements": 1000}, 4),
        ("pipeline", {}, 1),
        ("pipeline", {}, 2),
        ("pipeline", {"schedule": "gpipe", "microbatches": 1}, 2),
        ("pipeline", {"schedule": "gpipe"}, 4),
        ("pipeline", {"schedule": "1f1b", "microbatches": 16}, 4),
        ("pipeline", {"schedule": "interleaved_1f1b"}, 2),
        ("pipeline", {"schedule": "interleaved_1f1b", "stages_per_rank": 3}, 2),
        ("pipeline", {"pipeline_size": 2}, 4),
        ("pipeline", {"pipeline_size": 1, "microbatches": 2}, 2),
        ("pipeline", {"pipeline_size": 2, "schedule": "interleaved_1f1b"}, 4),
    ],
)
def test_losses_and_weights_are_those_of_one_process(
    name: str, options: dict[str, Any], processes: int
) -> None:
    check_equal(name, options, processes)


@pytest.mark.parametrize(("name", "most"), [("tp", 0.6), ("pipeline", 0.6)])
def test_each_of_two_processes_holds_about_half_of_the_weights(name: str, most: float) -> None:
    whole = sum(weight.numel() for weight in build().parameters())
    held = run_forked(count_held, 2, name)
    assert max(held) < most * whole


def count_held(name: str) -> int:
    strategy = make_strategy(name)
    set_up(strategy, build)
    return sum(weight.numel() for weight in strategy.bare.parameters())


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
    "copies of tp": ("tp", {"tensor_size": 2}, 4),
    "fsdp": ("fsdp", {}, 2),
    "fsdp+tp": ("fsdp+tp", {"unit_elements": 1000}, 4),
    "pipeline": ("pipeline", {}, 2),
    "pipeline of 4": ("pipeline", {}, 4),
    "interleaved": ("pipeline", {"schedule": "interleaved_1f1b"}, 2),
    "copies of a pipeline": ("pipeline", {"pipeline_size": 2}, 4),
}
SHORT = {
    ("tp", "one"),
    ("one", "tp"),
    ("pipeline", "one"),
    ("ddp", "pipeline"),
    ("tp", "interleaved"),
    ("interleaved", "tp of 4"),
    ("copies of a pipeline", "fsdp+tp"),
    ("fsdp+tp", "pipeline"),
    ("fsdp+tp", "one"),
    ("fsdp", "copies of tp"),
}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(
            first,
            then,
            marks=() if (first, then) in SHORT else pytest.mark.slow,
            id=f"{first}-{then}",
        )
        for first in WAYS
        for then in WAYS
    ],
)
def test_a_checkpoint_of_one_way_goes_on_in_another(tmp_path: Path, first: str, then: str) -> None:
    losses, weights = train_alone(4, build)
    name, options, processes = WAYS[first]
    for found in run_forked(train_and_save, processes, name, options, tmp_path):
        assert found == pytest.approx(losses[:2], abs=LOSS_TOLERANCE)
    name, options, processes = WAYS[then]
    for result in run_forked(load_and_train, processes, name, options, tmp_path):
        assert result["losses"] == pytest.approx(losses[2:], abs=LOSS_TOLERANCE)
        assert differ(result["weights"], weights) < TOLERANCE
