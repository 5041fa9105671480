"""Gradients of virtual shards, added up; the worlds here are real processes."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fabric_train.communication.reduction import (
    ExactReduction,
    FastReduction,
    TreeSum,
    align,
    plan_cover,
)
from fabric_train.errors import InputError
from fabric_train.sampling.sampler import plan_rank_shards
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place, RankBatch
from tests.fabric_train.forked import run_forked


@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=24), data=st.data())
def test_ranks_that_add_up_their_covers_get_the_bits_of_a_rank_alone(values, data):
    shards = len(values)
    world = data.draw(st.integers(1, shards))
    sums = {}
    for ranks in (1, world):
        whole = TreeSum(shards)
        for rank in range(ranks):
            rank_shards, part = plan_rank_shards(shards, rank, ranks), TreeSum(shards)
            for shard in data.draw(st.permutations(rank_shards)):
                part.add((shard, shard + 1), torch.tensor(values[shard]))
            cover = plan_cover(rank_shards, shards)
            assert [shard for node in cover for shard in range(*node)] == list(rank_shards)
            for node in cover:
                whole.add(node, part.pop(node))
        sums[ranks] = whole.pop((0, shards))
    assert torch.equal(sums[1], sums[world])
    assert sums[1].item() == pytest.approx(sum(values), abs=50)


@pytest.mark.parametrize(
    ("rank_shards", "shards", "cover"),
    [
        (range(4, 8), 16, [(4, 8)]),
        (range(5, 10), 16, [(5, 6), (6, 8), (8, 10)]),
        (range(1, 7), 7, [(1, 3), (3, 7)]),
        (range(3), 3, [(0, 3)]),
    ],
)
def test_a_rank_sends_the_fewest_sums(rank_shards, shards, cover):
    assert plan_cover(rank_shards, shards) == cover


def test_a_shard_that_is_missing_is_an_error_and_not_a_smaller_sum():
    reduction = ExactReduction(nn.Linear(2, 1), virtual_shards=2)
    with pytest.raises(KeyError):
        reduction.finish()


@pytest.mark.parametrize("make", [ExactReduction, partial(FastReduction, world_size=1)])
def test_the_mean_over_shards_is_the_gradient_of_the_whole_batch(make):
    model, inputs = nn.Linear(6, 3), torch.rand(12, 6)
    reduction = make(model, virtual_shards=4)
    for shard, part in enumerate(inputs.split(3)):
        with reduction.sync(last=shard == 3):
            reduction.backward(reduction.forward(part, last=shard == 3).square().mean(), shard)
    reduction.finish()
    mean = [each.grad for each in model.parameters()]
    assert all(gradient.data_ptr() % 64 == 0 for gradient in mean)
    model.zero_grad()
    model(inputs).square().mean().backward()
    torch.testing.assert_close(mean, [each.grad for each in model.parameters()])


class Parts(nn.Module):
    """Has a parameter that is frozen, one that no loss depends on, and 14 numbers that learn."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen, self.unused = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1)
        self.used = nn.Linear(3, 2, bias=False)
        self.alpha = nn.Parameter(torch.ones(4))

    def forward(self, inputs):
        return self.used(self.frozen(inputs)).tanh() * self.alpha.prod()


def test_real_ranks_of_any_number_get_the_same_bits_step_after_step():
    def train(shards: int) -> tuple[list[float], list[bool]]:
        rank, world = dist.get_rank(), dist.get_world_size()
        model = Parts()
        reduction = ExactReduction(model, virtual_shards=shards, rank=rank, world_size=world)
        for step in range(2):
            for shard in plan_rank_shards(shards, rank, world):
                generator = torch.Generator().manual_seed(step * shards + shard)
                inputs = torch.rand(2, 3, generator=generator)
                reduction.backward(reduction.forward(inputs, last=False).mean(), shard)
            reduction.finish()
            torch.optim.SGD(model.parameters(), lr=0.5).step()
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        return [value for each in gradients for value in each.flatten().tolist()], [
            each.grad is None for each in model.parameters()
        ]

    (alone,) = run_forked(train, 1, 5)
    assert any(alone[0])
    for world in (2, 3):
        assert run_forked(train, world, 5) == [alone] * world


def test_a_copy_is_aligned_whatever_it_was_cut_from():
    storage = torch.rand(100)
    for offset in range(1, 17):
        (copy,) = align([storage[offset : offset + 64]])
        assert copy.data_ptr() % 64 == 0


def view_of(storage: torch.Tensor) -> nn.Module:
    model = nn.Linear(4, 4, bias=False)
    model.weight.data = storage
    return model


NORMS = ", whose statistics depend on the world size\n  fix: use GroupNorm or LayerNorm"
VIEW = (
    "a parameter of shape (4, 4) is not a contiguous tensor of its own\n"
    "  fix: give each parameter memory of its own"
)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), f"1 is a BatchNorm2d{NORMS}"),
        (nn.BatchNorm1d(2), f"the model is a BatchNorm1d{NORMS}"),
        (view_of(torch.rand(17)[1:].view(4, 4)), VIEW),
        (view_of(torch.rand(4, 4).t()), VIEW),
    ],
)
def test_a_model_whose_bits_would_depend_on_the_world_is_refused(model, says):
    with pytest.raises(InputError) as error:
        ExactReduction(model, virtual_shards=2)
    assert str(error.value) == f"--reduction exact: {says}, or --reduction fast"


@pytest.mark.parametrize("name", ["ddp", "fp16"])
def test_only_the_micro_batch_that_sends_runs_through_ddps_forward_pass(name):
    shards = 6

    def step() -> tuple[int, list[float]]:
        calls = []
        rank = dist.get_rank()
        strategy = make_strategy(name, {})
        torch.manual_seed(0)
        model, _ = strategy.setup(
            nn.Linear(3, 1),
            lambda weights: torch.optim.SGD(weights, lr=0.1),
            Place(device=torch.device("cpu"), rank=rank, world_size=2),
            virtual_shards=shards,
        )
        model.register_forward_pre_hook(lambda *_: calls.append("ddp"))
        rank_shards = plan_rank_shards(shards, rank, 2)
        strategy.run_step(
            RankBatch(
                shards=rank_shards,
                batches=(
                    (torch.full((2, 3), 1.0 + shard), torch.zeros(2)) for shard in rank_shards
                ),
                loss=lambda outputs, targets: (outputs.squeeze(1) - targets).square().mean(),
            )
        )
        weights = strategy.bare.parameters()
        return len(calls), [value for each in weights for value in each.grad.flatten().tolist()]

    torch.manual_seed(0)
    alone = nn.Linear(3, 1)
    for shard in range(shards):
        outputs = alone(torch.full((2, 3), 1.0 + shard))
        (outputs.square().mean() / shards).backward()
    wanted = [value for each in alone.parameters() for value in each.grad.flatten().tolist()]
    for calls, gradients in run_forked(step, 2):
        assert calls == 1
        assert gradients == pytest.approx(wanted, rel=2e-3 if name == "fp16" else 1e-6)
