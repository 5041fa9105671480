"""ddp2: the loss over a node's whole batch, against one process that holds this batch."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fabric_train.checkpointing.state import digest_weights
from fabric_train.communication.reduction import align
from fabric_train.errors import InputError
from fabric_train.sampling.sampler import plan_rank_shards
from fabric_train.strategies import make_strategy
from fabric_train.strategies.ddp2 import Ddp2
from fabric_train.strategies.strategy import Place, RankBatch
from tests.fabric_train.contrastive import contrast
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.one_process import place_here

SHARD, STEPS = 3, 3


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))


def draw(step, shard):
    generator = torch.Generator().manual_seed(1000 * step + shard)
    return torch.randn(SHARD, 5, generator=generator), torch.arange(SHARD) % 2


def build_sgd(weights):
    return torch.optim.SGD(weights, lr=0.5)


def train(strategy, nodes, virtual_shards):
    """Losses and weights of this rank."""
    place = place_here(nodes)
    strategy.setup(make_model(), build_sgd, place, virtual_shards=virtual_shards)
    shards = plan_rank_shards(virtual_shards, place.rank, place.world_size)
    losses = []
    for step in range(STEPS):
        batches = (align(draw(step, shard)) for shard in shards)
        losses.append(
            strategy.run_step(RankBatch(shards=shards, batches=batches, loss=contrast)).item()
        )
        strategy.step(step)
    return losses, strategy.gather_weights()


def train_alone(nodes, virtual_shards):
    """Plain torch in one process, with the whole batch of each node in turn."""
    model = make_model()
    optimizer = build_sgd(model.parameters())
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for node in range(nodes):
            own = [draw(step, each) for each in plan_rank_shards(virtual_shards, node, nodes)]
            inputs, targets = (torch.cat(parts) for parts in zip(*own, strict=True))
            loss = contrast(model(inputs), targets)
            (loss * len(own) / virtual_shards).backward()
            losses.append(loss.item())
        optimizer.step()
    return [losses[node::nodes] for node in range(nodes)], model.state_dict()


# -- what runs in the ranks ------------------------------------------------------------------------


def train_many():
    return {
        (exact, nodes, shards): train(Ddp2(exact=exact), nodes, shards)
        for exact in (False, True)
        for nodes in (1, 2)
        for shards in (4, 5, 8)
    }


def use_hooks():
    seen = []

    class Hooked(Ddp2):
        def training_step_end(self, outputs, targets):
            seen.append(("training", len(outputs), len(targets)))
            return outputs * 2, targets

        def validation_step_end(self, outputs, targets):
            seen.append(("validation", len(outputs), len(targets)))
            return outputs, targets + 1

        def test_step_end(self, outputs, targets):
            seen.append(("test", len(outputs), len(targets)))
            return outputs[:-1], targets[:-1]

    strategy = Hooked()
    rank = dist.get_rank()
    model, _ = strategy.setup(make_model(), build_sgd, place_here())
    inputs, targets = draw(0, rank)
    outputs = model(inputs)
    doubled, _ = strategy.gather(outputs, targets)
    with torch.no_grad():
        _, later = strategy.gather(outputs, targets, "validation")
        # The second rank has run out of test samples, and repeats its last batch.
        scored, labels = strategy.gather_test(outputs, targets, counts=rank == 0)
    own = doubled[rank * SHARD : (rank + 1) * SHARD]
    return {
        "seen": seen,
        "doubled": torch.equal(own, 2 * outputs),
        "later": later.tolist(),
        "scored": (len(scored), len(labels)),
    }


def train_plainly():
    """The loop of the docstring of ``strategies.strategy``."""
    strategy = make_strategy("ddp2")
    model, _ = strategy.setup(make_model(), build_sgd, place_here())
    for step in range(STEPS):
        inputs, targets = draw(step, dist.get_rank())
        with strategy.sync(last=True):
            strategy.backward(contrast(*strategy.gather(model(inputs), targets)))
        strategy.finish()
        strategy.step(step)
    return strategy.gather_weights()


def learn_in_the_loss():
    strategy = Ddp2(exact=True)
    model = make_model()
    model.register_parameter("scale", nn.Parameter(torch.ones(())))
    strategy.setup(model, build_sgd, place_here())
    batch = RankBatch(
        shards=[dist.get_rank()],
        batches=iter([draw(0, dist.get_rank())]),
        loss=lambda outputs, targets: contrast(outputs, targets) * model.scale,
    )
    with pytest.raises(InputError, match="the loss itself uses scale"):
        strategy.run_step(batch)
    with pytest.raises(InputError, match=r"call strategy\.run_step"):
        strategy.backward(torch.ones((), requires_grad=True))


# -- tests -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_four():
    """Losses and weights of four processes, by (exact, nodes, virtual shards)."""
    return run_forked(train_many, 4)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("shards", [4, 5, 8])
def test_four_processes_are_equal_to_one_with_each_nodes_batch(of_four, exact, nodes, shards):
    expected, weights = train_alone(nodes, shards)
    for rank, result in enumerate(of_four):
        losses, own = result[exact, nodes, shards]
        assert losses == pytest.approx(expected[rank * nodes // 4], rel=1e-5)
        for name, weight in weights.items():
            torch.testing.assert_close(own[name], weight, rtol=1e-4, atol=1e-6)


def test_exact_gives_the_same_bits_for_any_number_of_processes_in_a_node(of_four):
    for nodes in (1, 2):
        of_two = run_forked(lambda nodes=nodes: train(Ddp2(exact=True), nodes, 5), 2)
        digests = {
            digest_weights(weights)
            for result in (of_two, [result[True, nodes, 5] for result in of_four])
            for _, weights in result
        }
        assert len(digests) == 1


def test_the_loss_of_the_node_is_another_than_that_of_its_processes():
    shards = [draw(0, shard) for shard in range(2)]
    model = make_model()
    apart = [contrast(model(inputs), targets).item() for inputs, targets in shards]
    together, _ = train_alone(1, 2)
    assert not math.isclose(sum(apart) / 2, together[0][0], rel_tol=0.05)


def test_hooks_get_the_nodes_outputs_in_training_validation_and_test():
    for rank, result in enumerate(run_forked(use_hooks, 2)):
        assert result["seen"] == [("training", 6, 6), ("validation", 6, 6), ("test", 3, 3)]
        assert result["doubled"]
        assert result["later"] == [1, 2, 1, 1, 2, 1]
        # One rank scores for the node, and what the hook left.
        assert result["scored"] == ((2, 2) if rank == 0 else (0, 0))


def test_a_loop_of_ones_own_gets_the_same_from_gather_and_backward():
    _, expected = train_alone(1, 2)
    for weights in run_forked(train_plainly, 2):
        for name, weight in expected.items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6)


def test_exact_refuses_a_loss_that_has_weights_of_its_own_by_name():
    run_forked(learn_in_the_loss, 2)


def test_an_exact_checkpoint_names_the_number_of_nodes():
    strategy = Ddp2(exact=True)
    strategy.place = Place(
        device=torch.device("cpu"), world_size=8, local_world_size=4, local_rank=0
    )
    assert strategy.facts() == {"ddp2": "2 nodes"}
    assert Ddp2().facts() == {}
