"""A training that each strategy has to repeat: a small language model, its batches, its loss."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fabric_train.sampling.sampler import plan_rank_shards
from fabric_train.strategies.strategy import Place, RankBatch, Strategy
from train.workloads.charlm import Size, Transformer

SIZE = Size(layers=4, heads=4, width=16, context=8)
BATCH, VIRTUAL_SHARDS = 16, 4


def build_transformer(dropout: float = 0.0) -> nn.Module:
    """A transformer with the same weights in every process."""
    torch.manual_seed(1)
    return Transformer(SIZE, dropout)


def build_adamw(weights: object) -> torch.optim.Optimizer:
    """The program's optimizer."""
    return torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.1, fused=True)  # type: ignore[arg-type]


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over a batch and its characters."""
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())


def draw_text(step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step."""
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(0, 128, (BATCH, SIZE.context + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def place_here(nodes: int = 1) -> Place:
    """This rank's place, with or without a process group, as if on so many nodes."""
    if not dist.is_initialized():
        return Place(device=torch.device("cpu"))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return Place(
        device=torch.device("cpu"),
        rank=rank,
        world_size=world_size,
        local_rank=rank % (world_size // nodes),
        local_world_size=world_size // nodes,
    )


def cut_batch(strategy: Strategy, step: int) -> RankBatch:
    """This rank's part of a step's global batch."""
    shards = plan_rank_shards(VIRTUAL_SHARDS, strategy.replica, strategy.replicas)
    inputs, targets = (each.chunk(VIRTUAL_SHARDS) for each in draw_text(step))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((inputs[shard], targets[shard]) for shard in shards)

    return RankBatch(shards=shards, batches=batches(), loss=mean_loss)


def set_up(
    strategy: Strategy, build: Callable[[], nn.Module] = build_transformer
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer of this rank."""
    return strategy.setup(build(), build_adamw, place_here(), virtual_shards=VIRTUAL_SHARDS)


def train_steps(
    strategy: Strategy, first: int, stop: int, max_norm: float | None = 0.5
) -> list[float]:
    """The mean losses of these steps, over all replicas."""
    losses = []
    for step in range(first, stop):
        loss = strategy.run_step(cut_batch(strategy, step))
        if max_norm:
            strategy.clip(max_norm)
        strategy.step(step)
        losses.append(average(strategy, loss))
    return losses


def average(strategy: Strategy, loss: Tensor) -> float:
    """A loss over all replicas, each of which weighs as much as its shards."""
    world_size, replicas = strategy.place.world_size, strategy.replicas
    shards = plan_rank_shards(VIRTUAL_SHARDS, strategy.replica, replicas)
    share = loss * len(shards) / VIRTUAL_SHARDS * replicas / world_size
    if world_size > 1:
        dist.all_reduce(share)
    return share.item()


def train_alone(
    steps: int, build: Callable[[], nn.Module] = build_transformer
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights of one process."""
    strategy = Strategy()
    set_up(strategy, build)
    losses = train_steps(strategy, 0, steps)
    return losses, {name: weight.clone() for name, weight in strategy.gather_weights().items()}


def differ(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference of any weight; fails if names or shapes differ."""
    assert found.keys() == expected.keys()
    assert {name: each.shape for name, each in found.items()} == {
        name: each.shape for name, each in expected.items()
    }
    return max((found[name] - expected[name]).abs().max().item() for name in found)
