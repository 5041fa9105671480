"""Split linear layers, in a plain loop and by themselves."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fabric_train.communication.parts import Cut, Pieces, clip_over_ranks, find_cuts, gather_parts
from fabric_train.communication.tensor_parallel import Column, Plan, add_up, split_linears
from fabric_train.errors import InputError
from tests.fabric_train.forked import run_forked


class Glu(nn.Module):
    """A gated layer: value and gate come side by side from one Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(6, 16)
        self.down = nn.Linear(8, 6, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        value, gate = self.both(states).chunk(2, dim=-1)
        result: Tensor = self.down(value * gate.sigmoid())
        return result


PLAN: Plan = {"*.both": Column(blocks=2), "*.down": "row"}


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(Glu(), nn.LayerNorm(6), Glu()).double()


def train(steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """A plain loop of SGD, with nothing of this project but what is tested."""
    model, group = build(), None
    if dist.is_initialized():
        group = dist.group.WORLD
        split_linears(model, PLAN, group)
    cuts = find_cuts(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    leads = group is None or dist.get_rank(group) == 0
    counted = [weight for name, weight in model.named_parameters() if leads or name in cuts]
    norms = []
    for step in range(steps):
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad()
        (model(inputs) - inputs.roll(1)).square().mean().backward()
        norms.append(clip_over_ranks(list(model.parameters()), counted, group, max_norm=0.1).item())
        optimizer.step()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return (weights if group is None else gather_parts(weights, cuts, group)), norms


@pytest.mark.parametrize("processes", [2, 4])
def test_a_plain_loop_gets_the_weights_and_gradient_lengths_of_one_process(processes):
    expected, lengths = train(4)
    for weights, norms in run_forked(train, processes, 4):
        assert norms == pytest.approx(lengths, abs=1e-12)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], atol=1e-12, rtol=0, msg=name)


def test_lengths_are_clipped_as_torch_does_it():
    mine, torchs = build(), build()
    for model in (mine, torchs):
        model(torch.ones(2, 6).double()).sum().backward()
    weights = list(mine.parameters())
    length = clip_over_ranks(weights, weights, None, max_norm=0.1)
    assert length == pytest.approx(nn.utils.clip_grad_norm_(torchs.parameters(), 0.1).item())
    for weight, other in zip(weights, torchs.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad)


def test_sums_of_bfloat16_are_taken_in_32_bits():
    def add() -> Tensor:
        return add_up(torch.full((3,), 1.0, dtype=torch.bfloat16), dist.group.WORLD)

    for total in run_forked(add, 2):
        assert total.dtype == torch.bfloat16
        assert total.tolist() == [2.0, 2.0, 2.0]


def test_parts_are_taken_and_joined_block_by_block():
    whole = torch.arange(24.0).reshape(12, 2)
    cuts = [Cut(dim=0, size=12, rank=rank, ranks=2, blocks=3) for rank in range(2)]
    parts = [cut.cut_out(whole) for cut in cuts]
    assert parts[1][:, 0].tolist() == [4, 6, 12, 14, 20, 22]
    assert torch.equal(cuts[0].join(parts), whole)
    pieces = Pieces(parts[1], cuts[1])
    assert pieces.shape == whole.shape
    assert [at for at, _ in pieces.pieces] == [(2, 0), (6, 0), (10, 0)]
    for at, piece in pieces.pieces:
        assert torch.equal(piece, whole[at[0] : at[0] + 2])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 6)
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (nn.Sequential(Glu()), {"*.up": "column"}, "Sequential has no member '*.up'"),
        (nn.Sequential(Glu()), {"0": "row"}, "0 is a Glu, and only a Linear is split"),
        (nn.Sequential(Glu()), {"0.down": "rows"}, "0.down: 'rows' is neither column nor row"),
        (Tied(), {"head": "column"}, "head.weight is shared with embedding.weight"),
        (nn.Sequential(nn.Linear(5, 4)), {"0": "row"}, "0 has 5 inputs, which 2 processes cannot"),
        (nn.Sequential(Glu()), {"0.both": Column(blocks=2, unit=8)}, "in 2 x 1 groups of 8, which"),
        (nn.Sequential(Glu()), {"0.both": Column(blocks=3)}, "which are not 3 blocks of groups"),
    ],
)
def test_a_layer_that_cannot_be_split_is_refused_by_its_name(model, plan, message):
    def refuse() -> str:
        before = list(model.state_dict())
        with pytest.raises(InputError) as caught:
            split_linears(model, plan, dist.group.WORLD)
        assert list(model.state_dict()) == before
        assert not find_cuts(model)
        return str(caught.value)

    assert all(message in text for text in run_forked(refuse, 2))
