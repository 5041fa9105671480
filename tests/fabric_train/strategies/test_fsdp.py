"""``fsdp`` against one process: losses, weights, scores and what each process holds."""

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from fabric_train.errors import InputError
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place
from tests.fabric_train.forked import run_forked, world_of
from train.config import TrainConfig
from train.workloads import WORKLOADS


def build(workload: str) -> nn.Module:
    torch.manual_seed(0)
    return WORKLOADS[workload].build_model(TrainConfig(workload=workload))


def test_a_model_that_it_cannot_cut_is_refused_with_the_weights_name():
    def work() -> str:
        model = build("digits")
        model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
        with pytest.raises(InputError) as caught:
            make_strategy("fsdp").setup(model, AdamW, Place(device=torch.device("cpu")))
        return str(caught.value)

    (message,) = run_forked(work, 1)
    assert "scale is a single number" in message
    assert "--strategy ddp" in message


def test_offload_from_a_gpu_needs_a_process_group():
    strategy = make_strategy("fsdp", {"offload": True})
    with pytest.raises(InputError, match=r"offload needs a process group(.|\n)*torchrun"):
        strategy.check(None, "cuda")
    strategy.check(None, "cpu")
    strategy.check(world_of(1), "cuda")


@pytest.mark.parametrize(("offload", "backend"), [(False, "nccl"), (True, "cpu:gloo,cuda:nccl")])
def test_offloaded_gradients_have_a_group_of_their_own_to_be_added_up_in(offload, backend):
    strategy = make_strategy("fsdp", {"offload": offload})
    assert strategy.build_fabric_strategy("cuda").process_group_backend == backend


def test_with_tp_the_span_is_not_ones_own_to_choose():
    with pytest.raises(InputError, match=r"fsdp\+tp: span=node would cut the model within a node"):
        make_strategy("fsdp+tp", {"span": "node"}).check(world_of(2), "cpu")
