"""``fsdp`` against one process: losses, weights, outputs and what each process holds."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from fabric_train.saver import is_sharded
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
    weights: dict[str, Tensor]
    outputs: Tensor
    seen: set[torch.dtype]
    """Types of the weights in the forward passes."""
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
        strategy.clip(0.5)
        strategy.step(step)
    with torch.no_grad(), autocast():
        outputs = strategy.predict(one.draw_text(99)[0][:5])
    moments = [each["exp_avg"] for each in optimizer.state.values()]
    return Result(
        losses=losses,
        weights=strategy.gather_weights(),
        outputs=outputs.float(),
        seen=seen,
        own_elements=sum(local(each).numel() for each in (*model.parameters(), *moments)),
        is_sharded=is_sharded(model),
    )


def compare(result: Result, alone: Result, tolerance: float) -> None:
    assert result.losses == pytest.approx(alone.losses, abs=tolerance, rel=0)
    torch.testing.assert_close(result.outputs, alone.outputs, rtol=0, atol=10 * tolerance)
    assert list(result.weights) == list(alone.weights)
    assert one.differ(result.weights, alone.weights) <= 2 * tolerance, "Adam magnifies rounding"


# Three processes share four shards: some compute one a second time, which does not count.
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_losses_weights_and_outputs_are_those_of_one_process(world_size):
    alone = [train(**case) for case in CASES]
    for results in run_forked(lambda: [train(**case) for case in CASES], world_size):
        for result, wanted in zip(results, alone, strict=True):
            compare(result, wanted, 1e-5)
            assert result.is_sharded
            # As the docs say: a part of weights and moments, of which the last ranks' are smaller.
            assert result.own_elements <= wanted.own_elements / world_size * 1.05
            assert result.seen == {torch.float32}


def test_cut_within_nodes_it_computes_the_same_and_holds_more():
    alone = train(span="node")
    for result in run_forked(lambda: train(nodes=2, span="node"), 4):
        compare(result, alone, 1e-5)
        assert result.own_elements == pytest.approx(alone.own_elements / 2, rel=0.05)


def test_with_bf16_weights_are_gathered_in_it_and_kept_in_32_bits():
    # In a group, one process computes in the types that several do.
    (alone,), pair = (run_forked(train, size, BF16) for size in (1, 2))
    plain = train(BF16)
    assert plain.seen == {torch.float32}
    for result in pair:
        assert result.seen == {torch.bfloat16}
        assert {weight.dtype for weight in result.weights.values()} == {torch.float32}
        assert result.losses == pytest.approx(alone.losses, abs=1e-3)
        # Autocast of one process without a group rounds in other places.
        assert result.losses == pytest.approx(plain.losses, abs=1e-2)
