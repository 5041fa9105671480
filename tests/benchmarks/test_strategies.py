"""The peers of the strategies do the same work, and the formulas say what is sent."""

from typing import Any

from benchmarks import strategies, strategy_ranks
from benchmarks.peers import plain_strategies
from benchmarks.strategies import ACTIVATIONS, BATCH, TENSOR, UNIT_WEIGHTS, WEIGHTS
from train.config import parse_config
from train.workloads import charlm


def test_the_formulas_are_those_of_the_model_that_is_measured():
    config = parse_config(strategy_ranks.OPTIONS)
    model: Any = charlm.build_model(config)
    size = charlm.SIZES[config.model_size]
    assert sum(weight.numel() for weight in model.parameters()) == WEIGHTS
    assert sum(weight.numel() for weight in model.blocks.parameters()) == UNIT_WEIGHTS
    assert config.global_batch_size == BATCH
    assert size.layers == strategies.BLOCKS
    assert 4 * BATCH * size.context * size.width == ACTIVATIONS
    assert TENSOR == plain_strategies.TENSOR_RANKS
