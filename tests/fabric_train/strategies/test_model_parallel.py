"""model_parallel: layers on several devices of one process.

A CPU goes by several names, ``cpu:0`` and ``cpu:1``: the plan and every move are as with GPUs.
"""

import pytest
import torch
from torch import nn

from fabric_train.errors import InputError
from fabric_train.strategies import one_process
from fabric_train.strategies.one_process import ModelParallel, place_by_size
from fabric_train.strategies.strategy import Place
from tests.fabric_train.forked import world_of

HOME, A, B = torch.device("cpu"), torch.device("cpu:0"), torch.device("cpu:1")


class Branched(nn.Module):
    """Uses outputs of its layers beside each other, on whichever devices they are."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.chain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, inputs, *, scale):
        states = self.first(inputs)
        for block in self.blocks:
            states = states + block(states) * scale
        return self.chain(states)


def make_model():
    torch.manual_seed(0)
    return Branched()


def set_up(model, **options):
    strategy = ModelParallel(**options)
    strategy.check(None, "cpu")
    strategy.setup(model, lambda w: torch.optim.SGD(w, lr=0.1), Place(device=HOME))
    return strategy


def train(strategy_or_none):
    model = make_model()
    strategy = set_up(model, **strategy_or_none) if strategy_or_none else None
    optimizer = strategy.optimizer if strategy else torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(3):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        loss = model(inputs, scale=torch.tensor(0.5)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: weight.clone() for name, weight in model.state_dict().items()}


@pytest.mark.parametrize(
    "options", [{"devices": "cpu:0,cpu:1"}, {"layers": "blocks.[0-1]=cpu:0, chain=cpu:1"}]
)
def test_it_trains_what_one_device_trains(options):
    losses, weights = train(options)
    expected, alone = train(None)
    assert losses == expected
    for name, weight in weights.items():
        assert torch.equal(weight, alone[name])


@pytest.mark.gpu
@pytest.mark.parametrize("devices", ["cpu,cuda:0", "cuda:0,cpu"])
def test_a_gpu_and_the_hosts_memory_train_what_one_device_trains(devices):
    losses, weights = train({"devices": devices})
    expected, alone = train(None)
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(weight.cpu(), alone[name], rtol=1e-4, atol=1e-6)


def test_the_meta_device_shows_that_weights_lie_where_they_were_placed():
    model = Branched()
    # Weights on meta have no values, so only the place is looked at.
    strategy = set_up(model, layers="blocks.[2-3]=meta,chain=meta")
    places = {name: weight.device.type for name, weight in model.named_parameters()}
    assert {name for name, place in places.items() if place == "meta"} == {
        name for name in places if name.startswith(("blocks.2", "blocks.3", "chain"))
    }
    assert "meta 0.0 MiB" in strategy.describe()


@pytest.fixture
def moves(monkeypatch):
    """Every move of a tensor to a device, in order, as its name."""
    seen = []

    def record(device):
        def move(value):
            if isinstance(value, torch.Tensor):
                seen.append(str(device))
            return value

        return move

    monkeypatch.setattr(one_process, "mover", record)
    return seen


def test_a_sequential_hands_activations_on_and_other_layers_give_them_back(moves):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    strategy = set_up(model, devices="cpu:0,cpu:1")
    moves.clear()
    model(torch.ones(1, 4))
    # Each layer takes its input to its device, and the last gives its output back.
    assert moves == ["cpu:0", "cpu:0", "cpu:1", "cpu:1", "cpu"]
    assert strategy.moves == 3
    model = make_model()
    set_up(model, layers="blocks.0=cpu:0,blocks.1=cpu:1")
    moves.clear()
    model(torch.ones(1, 4), scale=torch.ones(()))
    assert moves == ["cpu:0", "cpu", "cpu:1", "cpu"]


def test_sizes_decide_how_many_layers_a_device_gets():
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Linear(1000, 1000), nn.ReLU(), *(nn.Linear(500, 500) for _ in range(4))
        )
    placement = place_by_size(model, [A, B])
    assert [placement[str(number)].index for number in range(6)] == [0, 0, 1, 1, 1, 1]
    placement = place_by_size(nn.ModuleList(nn.Linear(8, 8) for _ in range(9)), [A, B, HOME])
    assert [str(each) for each in placement.values()] == ["cpu:0"] * 3 + ["cpu:1"] * 3 + ["cpu"] * 3


def test_what_it_costs_is_said_beside_it():
    message = set_up(make_model(), devices="cpu:0,cpu:1").describe()
    assert message.startswith(
        "model_parallel: cpu 0.0 MiB, cpu:0 0.0 MiB, cpu:1 0.0 MiB of weights; "
    )
    assert "moves in a forward pass; one device computes at a time" in message


def test_weights_that_layers_on_two_devices_share_are_refused_by_name():
    model = make_model()
    model.chain[0].weight = model.blocks[0].weight
    with pytest.raises(InputError, match=r"blocks\.0\.weight and chain\.0\.weight are one weight"):
        set_up(model, layers="blocks=cpu:0,chain=cpu:1")
    set_up(model, layers="blocks=cpu:0,chain=cpu:0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"(?s)no GPU is there.*--strategy_options.devices cuda:0,cpu"),
        ({"devices": "cpu"}, "needs several devices, and cpu is there"),
        ({"devices": "cpu,cuda:9"}, "cuda:9 is not there, 0 CUDA devices"),
        ({"devices": "cpu,gpu"}, "'gpu' is no device"),
        ({"layers": "blocks"}, "'blocks' is not NAME=DEVICE"),
        ({"layers": "a=cpu", "devices": "cpu,cpu"}, "give one of them"),
        ({"layers": "block.0=cpu"}, r"(?s)'block.0' matches no layer.*did you mean blocks.0"),
        ({"layers": "blocks.*=cpu,blocks.0=cpu:1"}, "'blocks.0' matches no layer, or only layers"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(monkeypatch, options, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=message):
        set_up(make_model(), **options)


def test_several_processes_are_refused_with_what_to_use():
    with pytest.raises(InputError, match=r"(?s)there are 2.*--strategy fsdp, or --strategy pipe"):
        ModelParallel().check(world_of(2), "cuda")


def test_a_model_without_containers_is_refused_by_size():
    with pytest.raises(InputError, match="no Sequential and no ModuleList"):
        set_up(nn.Linear(2, 2), devices="cpu:0,cpu:1")


def test_only_a_copy_to_a_gpu_does_not_block(monkeypatch):
    non_blockings = []
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, device, non_blocking: non_blockings.append(non_blocking)
    )
    for device in (torch.device("cpu"), torch.device("cuda", 1)):
        one_process.mover(device)(torch.ones(1))
    assert non_blockings == [False, True]
