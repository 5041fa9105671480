"""The batch of a group of processes on each of them, in a plain loop of torch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fabric_train.communication.gather import gather_batch, new_node_group
from tests.fabric_train.contrastive import contrast
from tests.fabric_train.forked import run_forked

ROWS = (3, 1)


def draw(rows):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(rows) % 2


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def gather_uneven():
    rank = dist.get_rank()
    part = torch.full((ROWS[rank], 2), float(rank), requires_grad=True)
    whole = gather_batch(part, dist.group.WORLD)
    # Each rank weighs the rows otherwise; a rank's gradient is the sum over both.
    weights = (torch.arange(4.0) + 1) * (10**rank)
    (whole * weights[:, None]).sum().backward()
    numbers = gather_batch(torch.full((ROWS[rank],), rank), dist.group.WORLD, ROWS)
    flags = gather_batch(torch.full((ROWS[rank],), rank == 1), dist.group.WORLD, ROWS)
    empty = gather_batch(torch.ones(rank, 2), dist.group.WORLD)
    half = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    gather_batch(half, dist.group.WORLD).sum().backward()
    return {
        "whole": whole.tolist(),
        "gradient": part.grad.tolist(),
        "numbers": numbers.tolist(),
        "flags": flags.tolist(),
        "empty": empty.tolist(),
        "half": (half.grad.item(), half.grad.dtype),
    }


def test_parts_of_different_lengths_come_together_in_the_order_of_ranks():
    for rank, told in enumerate(run_forked(gather_uneven, 2)):
        assert told["whole"] == [[0.0, 0.0]] * 3 + [[1.0, 1.0]]
        assert told["numbers"] == [0, 0, 0, 1]
        assert told["flags"] == [False, False, False, True]
        assert told["empty"] == [[1.0, 1.0]]
        expected = [[11.0 * (row + 1)] * 2 for row in range(4)]
        assert told["gradient"] == (expected[:3] if rank == 0 else expected[3:])
        assert told["half"] == (2.0, torch.bfloat16)


def train_plainly(nodes, steps=3):
    """DDP and SGD as anybody writes them, with the batch of a node in the loss."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    node = new_node_group(rank, world_size, world_size // nodes)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, targets = draw(8)
    own = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    losses = []
    for _ in range(steps):
        outputs = gather_batch(model(inputs[own]), node)
        loss = contrast(outputs, gather_batch(targets[own], node))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [weight.detach().clone() for weight in model.parameters()]


def train_alone(nodes, steps=3):
    """The same in one process, which takes the batch of each node in turn."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, targets = draw(8)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        step = []
        for part in range(nodes):
            own = slice(8 * part // nodes, 8 * (part + 1) // nodes)
            loss = contrast(model(inputs[own]), targets[own])
            (loss / nodes).backward()
            step.append(loss.item())
        optimizer.step()
        losses.append(step)
    return losses, [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize(("world_size", "nodes"), [(2, 1), (2, 2), (4, 2)])
def test_a_plain_loop_with_ddp_is_equal_to_one_process_with_each_nodes_batch(world_size, nodes):
    expected, weights = train_alone(nodes)
    for rank, (losses, own) in enumerate(run_forked(train_plainly, world_size, nodes)):
        of_node = [step[rank * nodes // world_size] for step in expected]
        assert losses == pytest.approx(of_node, rel=1e-12)
        for weight, alone in zip(own, weights, strict=True):
            torch.testing.assert_close(weight, alone, rtol=1e-12, atol=1e-14)


def test_the_loss_of_that_test_depends_on_the_whole_batch():
    inputs, targets = draw(8)
    outputs = make_model()(inputs)
    halves = (contrast(outputs[:4], targets[:4]) + contrast(outputs[4:], targets[4:])) / 2
    assert abs(contrast(outputs, targets) - halves) > 0.1
