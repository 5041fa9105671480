"""A loop that trains the small quadratic by a strategy, with checkpoints."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW

from fabric_train.checkpointing.memory import world_size
from fabric_train.checkpointing.saver import Saver
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Place, RankBatch
from tests.fabric_train.communication import quadratic
from tests.fabric_train.communication.quadratic import Quadratic


def train(
    name: str,
    options: dict[str, Any],
    *,
    steps: int = quadratic.STEPS,
    folder: Path | None = None,
    save_at: Sequence[int] = (),
    adam: bool = False,
) -> dict[str, Any]:
    """What a rank saw: its loss at each step, and the weights after it."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    strategy = make_strategy(name, options)
    place = Place(device=torch.device("cpu"), rank=rank, world_size=world_size())

    def build(weights: Any) -> torch.optim.Optimizer:
        if adam:
            return AdamW(weights, lr=quadratic.LR, weight_decay=0.05)
        return SGD(weights, lr=quadratic.LR, momentum=0.0 if folder is None else 0.5)

    strategy.setup(Quadratic(rank), build, place)
    first, losses, weights = 0, {}, []
    if folder is not None:
        saver = Saver(folder, say=lambda text: None)
        found = saver.resume(strategy.bare, strategy.optimizer, strategy)
        first = found.step if found else 0
    shown: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(first, steps):
            nothing = [(torch.empty(0), torch.empty(0))]
            loss = lambda outputs, targets: outputs  # noqa: E731
            batch = RankBatch(shards=[rank], batches=iter(nothing), loss=loss)
            losses[step] = strategy.run_step(batch).item()
            strategy.step(step)
            weights.append(quadratic.flat(strategy.bare))
            if step + 1 in save_at:
                saved = (strategy.bare, strategy.optimizer)
                saver.save(step + 1, *saved, strategy=strategy, block=True)
        strategy.before_save()
        shown = [str(each.message) for each in caught]
    memory = {
        key: (each.to_local() if isinstance(each, DTensor) else each).numpy()
        for key, each in strategy.memory().items()
    }
    strategy.close()
    return {"losses": losses, "weights": weights, "memory": memory, "warnings": shown}
