"""Tensor parallel and pipelines under autocast; rows of ``strategy_rows`` hold the rest."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fabric_train.strategies import make_strategy
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.one_process import cut_batch, mean_loss, set_up, train_alone


@pytest.mark.parametrize("name", ["tp", "pipeline"])
def test_bfloat16_is_used_where_autocast_says_so(name):
    losses, _ = train_alone(2)

    def train() -> list[float]:
        strategy = make_strategy(name)
        set_up(strategy)
        rank_losses = []
        for step in range(2):
            batch = cut_batch(strategy, step)
            autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
            loss = lambda outputs, targets: mean_loss(outputs.float(), targets)  # noqa: E731
            rank_losses.append(
                strategy.run_step(replace(batch, autocast=autocast, loss=loss)).item()
            )
            strategy.step(step)
        return rank_losses

    for rank_losses in run_forked(train, 2):
        assert rank_losses == pytest.approx(losses, abs=1e-2)
        assert rank_losses != pytest.approx(losses, abs=1e-6)
