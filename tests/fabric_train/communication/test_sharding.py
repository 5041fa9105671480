"""FSDP2 in a plain loop of torch, without strategies, Fabric or this project's training."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.strategies.model_parallel import _ParallelBackwardSyncControl
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fabric_train.communication.sharding import (
    drop_gathered,
    gather_whole,
    plan_units,
    shard,
    sync_gradients,
)
from fabric_train.errors import InputError
from tests.fabric_train.forked import run_forked


class Block(nn.Module):
    """A linear layer, added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.layer(inputs).tanh()


class Net(nn.Module):
    """Two blocks, and a head with seven rows, which no even number of processes divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 7)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        outputs: Tensor = self.head(inputs)
        return outputs


class Collectives(TorchDispatchMode):
    """Names of the collectives that a process starts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


UNITS = ["blocks.0", "blocks.1"]
MICRO_BATCHES = 3


def step(
    model: nn.Module,
    rank: int = 0,
    world_size: int = 1,
    sync: Callable[[nn.Module, bool], Any] = lambda model, last: sync_gradients(model, last=last),
) -> None:
    """Puts the mean gradient of one batch into the model, in micro-batches of each rank's rows."""
    samples = torch.randn(world_size * MICRO_BATCHES * 4, 8, generator=torch.manual_seed(1))
    for number, rows in enumerate(samples.chunk(world_size)[rank].chunk(MICRO_BATCHES), start=1):
        with sync(model, number == MICRO_BATCHES):
            (model(rows).square().mean() / MICRO_BATCHES).backward()


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [
        weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad.clone()
        for weight in model.parameters()
    ]


# -- units -----------------------------------------------------------------------------------


def tie(model: Net) -> Net:
    model.head.weight = model.blocks[1].layer.weight
    return model


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (Net(), {}, UNITS),
        (Net(), {"by": "whole"}, []),
        (Net(), {"by": "size", "least_elements": 70}, ["blocks.1", "blocks.0"]),
        (Net(), {"by": "size", "least_elements": 140}, []),
        (Net(), {"least_elements": 100}, []),
        (nn.Sequential(Net(), nn.ReLU(), nn.Conv2d(3, 5, 3)), {}, ["0", "2"]),
        (nn.ModuleList([nn.ModuleDict({"a": Block()}), Block()]), {}, ["0.a", "1"]),
        # Its output may be a view, which an operation in place would cut off from FSDP's hooks.
        (nn.Sequential(nn.Linear(9, 9), nn.ReLU(inplace=True)), {}, []),
    ],
)
def test_units_are_members_of_lists_or_modules_of_some_size(model, options, expected):
    assert plan_units(model, **({"least_elements": 1} | options)) == expected


def test_a_unit_that_shares_a_weight_with_the_rest_is_none():
    model = Net()
    model.head = nn.Linear(8, 8)
    assert plan_units(tie(model), least_elements=1) == ["blocks.0"]


# -- steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reshard", [True, False])
def test_gradients_are_those_of_one_process_and_are_sent_once_in_a_step(reshard):
    def work() -> tuple[list[Tensor], Counter[str], list[Tensor]]:
        model = shard(Net(), UNITS, reshard=reshard)
        with Collectives() as started:
            step(
                model,
                dist.get_rank(),
                dist.get_world_size(),
                lambda model, last: sync_gradients(model, last=last, reshard=reshard),
            )
        whole = gather_whole(model)
        return gradients_of(model), Counter(started.names), [whole[name] for name in whole]

    alone = Net()
    for rank in range(3):
        step(alone, rank, 3)
    expected = [weight.grad / 3 for weight in alone.parameters()]
    for gradients, started, whole in run_forked(work, 3):
        for gradient, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-7)
        assert started == {
            # The two units forwards and backwards, the rest once; or everything once in a step.
            "c10d._allgather_base_": MICRO_BATCHES * (2 * 2 + 1) if reshard else 3,
            "c10d._reduce_scatter_base_": 3,
        }
        assert all(map(torch.equal, whole, Net().state_dict().values()))


def test_what_a_forward_pass_gathered_can_be_dropped():
    def work() -> list[bool]:
        model = shard(Net(), UNITS, reshard=False)
        with torch.no_grad():
            model(torch.ones(1, 8))
        whole = [isinstance(weight, DTensor) for weight in model.parameters()]
        drop_gathered(model)
        return whole + [isinstance(weight, DTensor) for weight in model.parameters()]

    assert run_forked(work, 2) == [[False] * 6 + [True] * 6] * 2


def test_sending_is_on_again_after_each_micro_batch_even_after_an_error():
    def work() -> list[bool]:
        model = shard(Net(), UNITS)
        model(torch.ones(1, 8)).sum().backward()
        with pytest.raises(ValueError, match="no data"), sync_gradients(model, last=False):
            raise ValueError("no data")
        return [
            group.reduce_grads
            for module in model.modules()
            if isinstance(module, FSDPModule)
            for group in module._get_fsdp_state()._fsdp_param_groups
        ]

    assert run_forked(work, 2) == [[True] * 3] * 2


def test_fabrics_own_way_leaves_the_sending_off_and_ours_does_not():
    """The trap: ``fabric.no_backward_sync(model, enabled=False)`` around a step's last part."""

    def fabrics(model: nn.Module, last: bool) -> Any:
        return _ParallelBackwardSyncControl().no_backward_sync(model, enabled=not last)

    def work() -> list[list[Tensor | None]]:
        results = []
        for sync in (fabrics, lambda model, last: sync_gradients(model, last=last)):
            model = shard(Net(), UNITS)
            step(model, dist.get_rank(), 2, sync)
            model.zero_grad()
            model(torch.ones(1, 8)).sum().backward()  # a step without micro-batches
            results.append([weight.grad is not None for weight in model.parameters()])
        return results

    # When the first is all true, torch's or Lightning's newer version has mended it.
    assert run_forked(work, 2) == [[[False] * 6, [True] * 6]] * 2


# -- models that it cannot take ----------------------------------------------------------------


def scalar() -> nn.Module:
    model = Net()
    model.scale = nn.Parameter(torch.tensor(1.0))
    return model


def mixed() -> nn.Module:
    model = Net()
    model.blocks[1].layer.bias = nn.Parameter(torch.zeros(8, dtype=torch.float64))
    return model


def transposed() -> nn.Module:
    model = Net()
    model.blocks[0].layer.weight = nn.Parameter(torch.zeros(8, 8).t()[:, :7])
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (scalar, "scale is a single number"),
        (mixed, r"blocks.1.layer.bias is torch.float64 and blocks.1.layer.weight is torch.float32"),
        (transposed, "blocks.0.layer.weight is not contiguous"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_the_weights_name(build, message):
    with pytest.raises(InputError, match=message):
        shard(build(), UNITS)
