"""Gradients of virtual shards, added up; the worlds here are real processes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fabric_train.errors import InputError
from fabric_train.reduction import ExactReduction, TreeSum, align, plan_cover
from fabric_train.sampler import plan_rank_shards
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place, RankBatch
from tests.fabric_train.forked import run_forked


@given(shards=st.integers(1, 40), data=st.data())
def test_the_ranks_covers_make_up_the_whole_tree_at_any_world_size(shards, data):
    world = data.draw(st.integers(1, shards))
    covers = [plan_cover(plan_rank_shards(shards, r, world), shards) for r in range(world)]
    flat = [shard for cover in covers for node in cover for shard in range(*node)]
    assert flat == list(range(shards))


def test_a_rank_sends_one_sum_where_both_sizes_are_powers_of_two():
    assert plan_cover(range(4, 8), 16) == [(4, 8)]
    assert plan_cover(range(5, 10), 16) == [(5, 6), (6, 8), (8, 10)]


@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), data=st.data())
def test_the_sum_has_the_same_bits_in_whichever_order_shards_arrive(values, data):
    sums = []
    for order in (range(len(values)), data.draw(st.permutations(range(len(values))))):
        tree = TreeSum(len(values))
        for shard in order:
            tree.add((shard, shard + 1), torch.tensor(values[shard]))
        sums.append(tree.take((0, len(values))))
    assert torch.equal(*sums)


def test_a_shard_that_is_missing_is_an_error_and_not_a_smaller_sum():
    reduction = ExactReduction(nn.Linear(2, 1), virtual_shards=2)
    with pytest.raises(KeyError):
        reduction.finish()


def test_the_mean_over_shards_is_the_gradient_of_the_whole_batch():
    model, inputs = nn.Linear(6, 3), torch.rand(12, 6)
    reduction = ExactReduction(model, virtual_shards=4)
    for shard, part in enumerate(inputs.split(3)):
        reduction.backward(model(part).square().mean(), shard)
    reduction.finish()
    exact = model.weight.grad
    model.weight.grad = None
    model(inputs).square().mean().backward()
    torch.testing.assert_close(exact, model.weight.grad)
    assert exact.data_ptr() % 64 == 0


def test_a_copy_is_aligned_whatever_it_was_cut_from():
    storage = torch.rand(100)
    for offset in range(1, 17):
        (copy,) = align([storage[offset : offset + 64]])
        assert copy.data_ptr() % 64 == 0


def test_batch_norm_is_refused_with_what_to_use_instead():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(InputError, match=r"(?s)1 is a BatchNorm2d.*GroupNorm or LayerNorm"):
        ExactReduction(model, virtual_shards=2)


def test_parameters_that_are_views_are_refused():
    model = nn.Linear(4, 4, bias=False)
    model.weight.data = torch.rand(17)[1:].view(4, 4)
    with pytest.raises(InputError, match="not a contiguous tensor of its own"):
        ExactReduction(model, virtual_shards=2)


@pytest.mark.parametrize("name", ["ddp", "fp16"])
def test_only_the_micro_batch_that_sends_runs_through_ddps_forward_pass(name):
    shards = 6

    def step() -> tuple[int, list[float]]:
        calls = []
        rank = torch.distributed.get_rank()
        strategy = make_strategy(name, {})
        torch.manual_seed(0)
        model, _ = strategy.setup(
            nn.Linear(3, 1),
            lambda weights: torch.optim.SGD(weights, lr=0.1),
            Place(device=torch.device("cpu"), rank=rank, world_size=2),
            virtual_shards=shards,
        )
        model.register_forward_pre_hook(lambda *_: calls.append("ddp"))
        own = plan_rank_shards(shards, rank, 2)
        strategy.run_step(
            RankBatch(
                shards=own,
                batches=((torch.full((2, 3), 1.0 + shard), torch.zeros(2)) for shard in own),
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
