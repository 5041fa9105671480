"""What each process holds under ``fsdp``, and in which types; ``strategy_rows`` has its losses."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from fabric_train.checkpointing.saver import is_sharded
from fabric_train.strategies import make_strategy
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies import one_process as one
from tests.fabric_train.strategies.test_fsdp import build
from train.loop import mean_loss

BF16 = "bf16-mixed"
CASES: tuple[dict[str, Any], ...] = (
    {},
    {"reshard": False, "units": "size"},
    {"offload": True, "units": "whole"},
)


@dataclass(kw_only=True)
class Result:
    losses: list[float]
    kept: set[torch.dtype]
    seen: set[torch.dtype]
    """Types of the weights between the steps, and in the forward passes."""
    own_elements: int
    """Numbers of the weights that this process keeps, and of the optimizer's first moments."""
    is_sharded: bool


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def train(precision: str = "32-true", nodes: int = 1, **options: Any) -> Result:
    """Three steps in this process alone, or as a rank of the group."""
    strategy = make_strategy("fsdp", options)
    strategy.precision = precision
    model, optimizer = strategy.setup(
        build("charlm"),
        lambda weights: AdamW(weights, lr=1e-3, fused=True),
        one.place_here(nodes),
        virtual_shards=one.VIRTUAL_SHARDS,
    )
    seen: set[torch.dtype] = set()
    model.register_forward_hook(lambda module, *_: seen.add(next(module.parameters()).dtype))

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=precision == BF16)

    losses = []
    for step in range(3):
        batch = replace(one.cut_batch(strategy, step), autocast=autocast, loss=mean_loss)
        losses.append(one.average(strategy, strategy.run_step(batch)))
        strategy.step(step)
    moments = [each["exp_avg"] for each in optimizer.state.values()]
    return Result(
        losses=losses,
        kept={weight.dtype for weight in strategy.gather_weights().values()},
        seen=seen,
        own_elements=sum(local(each).numel() for each in (*model.parameters(), *moments)),
        is_sharded=is_sharded(model),
    )


def shares(world_size: int, *cases: dict[str, Any], **more: Any) -> Iterator[tuple[Result, float]]:
    """What each rank saw in each case, and which part it holds of what one process does."""
    alone = [train(**case) for case in cases]
    for results in run_forked(lambda: [train(**case, **more) for case in cases], world_size):
        for result, whole in zip(results, alone, strict=True):
            yield result, result.own_elements / whole.own_elements


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_process_holds_its_part_of_weights_and_moments(world_size):
    for result, share in shares(world_size, *CASES):
        assert result.is_sharded
        # As the docs say; the last ranks' parts are smaller.
        assert share <= 1 / world_size * 1.05
        assert result.seen == {torch.float32}


def test_cut_within_nodes_it_holds_the_part_of_its_node():
    for _, share in shares(4, {"span": "node"}, nodes=2):
        assert share == pytest.approx(1 / 2, rel=0.05)


def test_with_bf16_weights_are_gathered_in_it_and_kept_in_32_bits():
    # In a group, one process computes in the types that several do.
    (alone,), pair = (run_forked(train, size, BF16) for size in (1, 2))
    plain = train(BF16)
    assert plain.seen == {torch.float32}
    for result in pair:
        assert (result.seen, result.kept) == ({torch.bfloat16}, {torch.float32})
        assert result.losses == pytest.approx(alone.losses, abs=1e-3)
        # Autocast of one process without a group rounds in other places.
        assert result.losses == pytest.approx(plain.losses, abs=1e-2)
