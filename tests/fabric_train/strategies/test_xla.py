"""xla: refused where torch_xla is not installed; its calls are checked on a stand-in."""

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from fabric_train.errors import InputError
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place, RankBatch
from tests.fabric_train.forked import world_of

CPU = torch.device("cpu")


@pytest.fixture
def torch_xla(monkeypatch):
    """Its two calls, on the CPU: there is no version of it for this torch."""
    module = ModuleType("torch_xla")
    module.synced = 0
    module.device = lambda: CPU

    def sync():
        module.synced += 1

    module.sync = sync
    module.__spec__ = importlib.util.spec_from_loader("torch_xla", None)
    monkeypatch.setitem(sys.modules, "torch_xla", module)
    return module


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is not None, reason="it is installed")
def test_without_torch_xla_it_says_what_to_install():
    with pytest.raises(InputError, match=r"(?s)torch_xla is not installed.*pip install.*2\.13"):
        make_strategy("xla").check(None, "cpu")


def test_several_processes_are_refused(torch_xla):
    with pytest.raises(InputError, match="there are 2"):
        make_strategy("xla").check(world_of(2), "cpu")


def test_each_step_trains_what_one_device_trains_and_ends_with_a_sync(torch_xla):
    def train(name):
        torch.manual_seed(0)
        strategy = make_strategy(name)
        strategy.setup(nn.Linear(4, 1), lambda w: torch.optim.SGD(w, lr=0.1), Place(device=CPU))
        for number in range(3):
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
            strategy.run_step(
                RankBatch(
                    shards=[0],
                    batches=iter([(inputs, inputs)]),
                    loss=lambda outputs, targets: outputs.square().mean(),
                )
            )
            strategy.step(number)
        return strategy.gather_weights()

    weights = train("xla")
    assert torch_xla.synced == 3
    torch.testing.assert_close(weights, train("ddp"))
