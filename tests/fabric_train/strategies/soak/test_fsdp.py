"""``fsdp`` against one process: losses, weights, scores and what each process holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from fabric_train.sampler import plan_rank_shards
from fabric_train.saver import is_sharded
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place, RankBatch
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.test_fsdp import build
from train.loop import mean_loss

SHARDS, STEPS = 4, 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training of a few steps with one set of options."""

    workload: str = "digits"
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "32-true"
    processes_per_node: int = 0
    """0: all in one node."""


CASES = (
    Case(),
    Case(workload="charlm", options={"reshard": False, "units": "size"}),
    Case(workload="charlm", options={"offload": True, "units": "whole"}),
)
BF16 = Case(precision="bf16-mixed")


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


def draw(workload: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    if workload == "digits":
        return torch.rand(8, 1, 8, 8), torch.randint(10, (8,))
    text = torch.randint(128, (8, 65))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")


def train(case: Case) -> Result:
    """In this process alone, or as a rank of the group."""
    grouped = dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
    strategy = make_strategy("fsdp", case.options)
    strategy.precision = case.precision
    model, optimizer = strategy.setup(
        build(case.workload),
        lambda weights: AdamW(weights, lr=1e-3, fused=True),
        Place(
            device=torch.device("cpu"),
            rank=rank,
            world_size=world_size,
            local_world_size=case.processes_per_node or world_size,
        ),
        virtual_shards=SHARDS,
    )
    seen: set[torch.dtype] = set()
    model.register_forward_hook(lambda module, *_: seen.add(next(module.parameters()).dtype))
    inputs, targets = (each.chunk(SHARDS) for each in draw(case.workload))
    shards = plan_rank_shards(SHARDS, rank, world_size)
    losses = []
    for number in range(STEPS):
        loss = strategy.run_step(
            RankBatch(
                shards=shards,
                batches=iter([(inputs[shard], targets[shard]) for shard in shards]),
                loss=mean_loss,
                autocast=lambda: autocast(case.precision),
            )
        )
        loss = loss * len(shards) / SHARDS
        if grouped:
            dist.all_reduce(loss)
        losses.append(loss.item())
        strategy.clip(0.5)
        strategy.step(number)
    with torch.no_grad(), autocast(case.precision):
        outputs = strategy.predict(inputs[0])
    kept = [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]
    moments = [each["exp_avg"] for each in optimizer.state.values()]
    kept += [each.to_local() if isinstance(each, DTensor) else each for each in moments]
    return Result(
        losses=losses,
        weights=strategy.gather_weights(),
        outputs=outputs.float(),
        seen=seen,
        own_elements=sum(each.numel() for each in kept),
        is_sharded=is_sharded(model),
    )


def compare(result: Result, alone: Result, tolerance: float) -> None:
    assert result.losses == pytest.approx(alone.losses, abs=tolerance, rel=0)
    torch.testing.assert_close(result.outputs, alone.outputs, rtol=0, atol=10 * tolerance)
    assert list(result.weights) == list(alone.weights)
    for name, weight in result.weights.items():
        torch.testing.assert_close(weight, alone.weights[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    "world_size",
    # Three processes share four shards: some compute one a second time, which does not count.
    [2, *(size for size in (1, 3, 4))],
)
def test_losses_weights_and_outputs_are_those_of_one_process(world_size):
    alone = [train(case) for case in CASES]
    for results in run_forked(lambda: [train(case) for case in CASES], world_size):
        for result, wanted in zip(results, alone, strict=True):
            compare(result, wanted, 1e-5)
            assert result.is_sharded
            # As the docs say: a part of weights and moments, of which the last ranks' are smaller.
            assert result.own_elements <= wanted.own_elements / world_size * 1.05
            assert result.seen == {torch.float32}


def test_cut_within_nodes_it_computes_the_same_and_holds_more():
    nodes = Case(workload="charlm", options={"span": "node"}, processes_per_node=2)
    alone = train(nodes)
    for result in run_forked(train, 4, nodes):
        compare(result, alone, 1e-5)
        assert alone.own_elements / 2 <= result.own_elements * 1.05
        assert result.own_elements <= alone.own_elements / 2 * 1.05


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
