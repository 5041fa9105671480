"""Tensor parallel and pipelines: equal to one process, and one checkpoint for all."""

import pytest
import torch
from torch import Tensor, nn

from fabric_train.errors import InputError
from fabric_train.strategies import make_strategy
from tests.fabric_train.forked import run_forked, world_of
from tests.fabric_train.strategies.one_process import build_transformer, cut_batch, set_up


def build() -> nn.Module:
    return build_transformer().double()


@pytest.mark.parametrize("name", ["tp", "pipeline"])
def test_each_of_two_processes_holds_about_half_of_the_weights(name):
    whole = sum(weight.numel() for weight in build().parameters())
    assert max(run_forked(count_held, 2, name)) < 0.6 * whole


def count_held(name: str) -> int:
    strategy = make_strategy(name)
    set_up(strategy, build)
    return sum(weight.numel() for weight in strategy.bare.parameters())


@pytest.mark.parametrize(
    ("name", "options", "processes", "message"),
    [
        ("tp", {"tensor_size": 2}, 3, "3 processes cannot be divided into groups of tensor_size=2"),
        ("tp", {"tensor_size": -1}, 2, "tensor_size=-1 of tp is less than 0"),
        ("fsdp+tp", {}, 1, "--strategy_options.tensor_size 1, or a multiple of 2 processes"),
        ("fsdp+tp", {"tensor_size": 0}, 2, "tensor_size=0 of fsdp+tp is less than 1"),
        ("pipeline", {"pipeline_size": 4}, 6, "cannot be divided into groups of pipeline_size=4"),
        ("pipeline", {"microbatches": 2}, 4, "1f1b needs a micro-batch for each of 4 processes"),
        ("pipeline", {"stages_per_rank": 2}, 2, "--strategy_options.schedule interleaved_1f1b"),
        (
            "pipeline",
            {"schedule": "interleaved_1f1b", "microbatches": 7},
            2,
            "needs 3 rounds of equal length, but microbatches=7 is not a multiple of 3",
        ),
    ],
)
def test_a_world_that_does_not_fit_is_refused_before_there_is_a_process_group(
    name, options, processes, message
):
    strategy = make_strategy(name, options)
    assert strategy.count_replicas(processes) >= 1
    with pytest.raises(InputError) as caught:
        strategy.check(world_of(processes), "cpu")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["tp", "fsdp+tp", "pipeline"])
def test_a_model_without_a_plan_is_refused_with_what_to_write(name):
    def refuse() -> str:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        with pytest.raises(InputError) as caught:
            set_up(make_strategy(name), Model)
        return str(caught.value)

    for text in run_forked(refuse, 2):
        assert "the model Model" in text
        assert "--strategy fsdp" in text


@pytest.mark.parametrize("name", ["tp", "pipeline"])
def test_dropout_keeps_what_ranks_share_equal_and_does_not_repeat(name):
    def train() -> tuple[list[float], dict[str, Tensor]]:
        strategy = make_strategy(name)
        set_up(strategy, lambda: build_transformer(dropout=0.5))
        torch.manual_seed(0)
        losses = [strategy.run_step(cut_batch(strategy, 0)).item() for _ in range(2)]
        strategy.step(0)
        shared = strategy.bare.state_dict()
        return losses, {
            name: shared[name] for name in ("characters.weight", "norm.weight") if name in shared
        }

    (losses, first), (_, second) = run_forked(train, 2)
    assert losses[0] != losses[1]
    for name in first.keys() & second.keys():
        assert torch.equal(first[name], second[name])
