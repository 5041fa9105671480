"""deepspeed: refused where it is not installed; where it is, equal to one process."""

from functools import partial

import pytest
from torch import Tensor, nn

from fabric_train.strategies import make_strategy
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies import one_process as one
from tests.fabric_train.strategies.test_deepspeed import STEPS, package

OPTIONS = ({}, {"stage": 1}, {"offload": True}, {"stage": 1, "offload": True})


def build(freeze: bool = False) -> nn.Module:
    model = one.build_transformer()
    if freeze:
        next(model.parameters()).requires_grad_(False)
    return model


def train(options: dict[str, object], freeze: bool) -> tuple[list[float], dict[str, Tensor]]:
    strategy = make_strategy("deepspeed", options)
    one.set_up(strategy, lambda: build(freeze))
    losses = one.train_steps(strategy, 0, STEPS)
    weights = {name: each.clone() for name, each in strategy.gather_weights().items()}
    strategy.close()
    return losses, weights


# -- what it computes --------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, *(n for n in (1, 4))])
def test_losses_and_weights_are_those_of_one_process(package, ranks):
    cases = [(options, False) for options in OPTIONS] + [({}, True)]
    alone = {freeze: one.train_alone(STEPS, partial(build, freeze)) for freeze in (False, True)}
    for results in run_forked(lambda: [train(*case) for case in cases], ranks):
        for (_, freeze), (losses, weights) in zip(cases, results, strict=True):
            assert losses == pytest.approx(alone[freeze][0], abs=1e-5)
            assert one.differ(weights, alone[freeze][1]) < 2e-5
