"""dp: one process that splits its batch over GPUs."""

import pytest
import torch
from torch import nn

from fabric_train.errors import InputError
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place
from tests.fabric_train.forked import world_of


@pytest.mark.parametrize(
    ("world", "device", "message"),
    [
        (world_of(4, 2), "cuda", r"(?s)there are 4 on 2 nodes.*fix: --strategy ddp, or .*ddp2"),
        (world_of(2, 2), "cuda", r"there are 2\n"),
        (None, "cpu", r"(?s)there is none.*torchrun --nproc-per-node 2 -m train --strategy ddp"),
    ],
)
def test_where_it_cannot_run_it_names_the_command_that_does_what_was_meant(world, device, message):
    with pytest.raises(InputError, match=message):
        make_strategy("dp").check(world, device)


def test_one_process_under_the_launcher_may_use_it():
    make_strategy("dp").check(world_of(1, 1), "cuda")


@pytest.mark.gpu
def test_it_trains_what_one_device_trains():
    def train(name):
        torch.manual_seed(0)
        device = torch.device("cuda", 0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        strategy = make_strategy(name)
        strategy.setup(model, lambda w: torch.optim.SGD(w, lr=0.1), Place(device=device))
        for number in range(3):
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)).to(device)
            strategy.backward(strategy.model(inputs).square().mean())
            strategy.step(number)
        return strategy.gather_weights()

    torch.testing.assert_close(train("dp"), train("ddp"))
