"""The peers of the strategies do the same work, and the formulas say what is sent."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import strategies, strategy_ranks
from benchmarks.peers import plain_strategies
from benchmarks.strategies import ACTIVATIONS, BATCH, FORMULAS, TENSOR, UNIT_WEIGHTS, WEIGHTS
from benchmarks.strategy_ranks import take_pair
from train.config import parse_config
from train.workloads import charlm

COUNTERS = 20_000
"""Bytes of a step beside the strategy's own: what ranks tell each other about stops."""
FAST = {("ddp", 2)}
CASES = [
    pytest.param(name, nproc, marks=() if (name, nproc) in FAST else pytest.mark.slow)
    for name in FORMULAS
    for nproc in (1, 2, 4)
    if name != "fsdp+tp" or nproc >= TENSOR
]


@pytest.mark.parametrize(("name", "nproc"), CASES)
def test_both_sides_have_equal_losses_and_send_what_the_formula_says(
    name: str, nproc: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_ranks, "ROUNDS", 1)
    pair = take_pair(name, nproc)
    ours, theirs = pair["ours"], pair["theirs"]
    # The first Q of powersgd is drawn at random.
    tolerance = 1e-2 if name == "powersgd" else 1e-5
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=tolerance)
    expected = FORMULAS[name](nproc)
    assert ours["sent"] == pytest.approx(expected, rel=0.01, abs=COUNTERS)
    # Plain code sends small weights one by one.
    assert theirs["sent"] == pytest.approx(expected, rel=0.03, abs=COUNTERS)
    assert min(ours["memory"], theirs["memory"]) > 4 * WEIGHTS / nproc
    assert ours["step_s"] > 0


def test_the_formulas_are_those_of_the_model_that_is_measured() -> None:
    config = parse_config(strategy_ranks.OPTIONS)
    model: Any = charlm.build_model(config)
    size = charlm.SIZES[config.model_size]
    assert sum(weight.numel() for weight in model.parameters()) == WEIGHTS
    assert sum(weight.numel() for weight in model.blocks.parameters()) == UNIT_WEIGHTS
    assert config.global_batch_size == BATCH
    assert size.layers == strategies.BLOCKS
    assert 4 * BATCH * size.context * size.width == ACTIVATIONS
    assert TENSOR == plain_strategies.TENSOR_RANKS
