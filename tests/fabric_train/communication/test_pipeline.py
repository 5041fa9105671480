"""A model cut into stages, in a plain loop and by itself."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss

from fabric_train.communication.parts import gather_members
from fabric_train.communication.pipeline import (
    PipelineStages,
    ScheduleName,
    cut_layers,
    list_layers,
    split_evenly,
)
from fabric_train.errors import InputError
from tests.fabric_train.forked import run_forked


class Mirror(nn.Module):
    """One weight at both ends, a parameter of its own, a buffer, and layers in between."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.full((8,), 0.1))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        plan = {"enter": ("ends", "scale"), "layers": (), "leave": ("ends", "shift")}
        self.pipeline_plan = plan

    def enter(self, states: Tensor) -> Tensor:
        return self.ends(states).tanh() * self.scale

    def leave(self, states: Tensor) -> Tensor:
        return linear(states + self.shift, self.ends.weight.T)

    def forward(self, states: Tensor) -> Tensor:
        states = self.enter(states)
        for layer in self.layers:
            states = layer(states)
        return self.leave(states)


def build() -> nn.Module:
    torch.manual_seed(5)
    return Mirror().double()


def draw(step: int, rows: int = 8) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(step)).double()


def train(
    schedule: ScheduleName, stages_per_rank: int, microbatches: int
) -> tuple[dict[str, Tensor], list[float], Tensor, list[str]]:
    """A plain loop of SGD with momentum, alone or on all ranks."""
    model = build()
    pipeline = None
    if dist.is_initialized():
        options = {"microbatches": microbatches, "stages_per_rank": stages_per_rank}
        pipeline = PipelineStages(model, dist.group.WORLD, schedule=schedule, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step in range(4):
        inputs = draw(step)
        optimizer.zero_grad()
        if pipeline is None:
            loss = mse_loss(model(inputs), inputs.roll(1))
            loss.backward()
        else:
            loss = pipeline.run(inputs, inputs.roll(1), mse_loss)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        outputs = pipeline.predict(draw(9, 3)) if pipeline else model(draw(9, 3))
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    whole = gather_members(weights, pipeline.group) if pipeline else weights
    return whole, losses, outputs, list(weights)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "processes"),
    [
        ("gpipe", 1, 4, 2),
        ("1f1b", 1, 2, 2),
        ("1f1b", 1, 8, 4),
        ("interleaved_1f1b", 3, 4, 2),
        ("interleaved_1f1b", 2, 2, 2),
    ],
)
def test_a_plain_loop_gets_the_losses_and_weights_of_one_process(
    schedule, stages, microbatches, processes
):
    expected, expected_losses, expected_outputs, names = train("gpipe", 1, 1)
    results = run_forked(train, processes, schedule, stages, microbatches)
    for weights, losses, outputs, held in results:
        assert losses == pytest.approx(expected_losses, abs=1e-6)
        torch.testing.assert_close(outputs, expected_outputs, atol=1e-12, rtol=0)
        assert sorted(weights) == sorted(names)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], atol=1e-12, rtol=0, msg=name)
        assert set(held) < set(names)
    assert "scale" not in results[-1][3]
    assert "shift" not in results[0][3]


def test_the_largest_stage_is_as_small_as_can_be():
    assert split_evenly([1, 1, 1, 5, 1, 1], 3) == [0, 3, 4, 6]
    assert split_evenly([1, 2, 3], 3) == [0, 1, 2, 3]
    assert split_evenly([9, 1, 1, 1], 2) == [0, 1, 4]


def test_a_sequential_is_cut_between_its_children_and_theirs():
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.Sequential(nn.Flatten(), inner, nn.Linear(4, 4), nn.Tanh())
    stages = cut_layers(model, list_layers(model), 2)
    assert [[layer.name for layer in stage] for stage in stages] == [
        ["0", "1.0", "1.1"],
        ["2", "3"],
    ]


class Shared(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 4))
        self[1].weight = self[0].weight


class Forgetful(Mirror):
    def __init__(self) -> None:
        super().__init__()
        self.pipeline_plan = {"enter": ("ends",), "layers": (), "leave": ("ends", "shift")}


class Misspelt(Mirror):
    def __init__(self) -> None:
        super().__init__()
        self.pipeline_plan = {"entre": ("ends",), "layers": ()}


class Plain(nn.Module):
    pass


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Plain(), "Plain is no nn.Sequential and has no pipeline_plan"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "has 1 layers with weights, too few for 2"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "1 is a BatchNorm1d"),
        (Shared(), "1.weight and 0.weight are one weight"),
        (Forgetful(), "no layer of Forgetful has the member scale"),
        (Misspelt(), "Misspelt has no member 'entre'"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_by_the_members_name(model, message):
    def refuse() -> str:
        before = list(model.state_dict())
        with pytest.raises(InputError) as caught:
            PipelineStages(model, dist.group.WORLD)
        assert list(model.state_dict()) == before
        return str(caught.value)

    assert all(message in text for text in run_forked(refuse, 2))


def test_a_batch_that_micro_batches_cannot_share_is_refused_with_what_to_write():
    def refuse() -> str:
        pipeline = PipelineStages(build(), dist.group.WORLD, microbatches=3)
        with pytest.raises(InputError) as caught:
            pipeline.run(draw(0), draw(0), mse_loss)
        return str(caught.value)

    for text in run_forked(refuse, 2):
        assert "batch of 8 samples into microbatches=3" in text
        assert "--strategy_options.microbatches 1 or 2 or 4 or 8" in text
