"""A strategy's own tensors in a checkpoint, beside model and optimizer.

A tensor that is equal on all ranks is written once. A tensor that differs between ranks is given as
``share_row(tensor)`` and written by all ranks, into a folder that all nodes share:

    def memory(self):
        return {"average": self.average, "error": share_row(self.error)}

    def load_memory(self, saved):
        error = take_row(saved["error"]) if "error" in saved else None
        if error is not None:
            self.error.copy_(error)

A row comes back to its rank in a world of the same size. In another world each rank gets the whole
tensor, whose first dimension is the number of ranks that wrote it; ``take_row`` is None there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from fabric_train.checkpointing.manifest import CheckpointManifest
from fabric_train.checkpointing.snapshot import allocate_tensors, read_shards, read_tensors
from fabric_train.ranks import Ranks

if TYPE_CHECKING:
    from fabric_train.strategies.strategy import Strategy

MEMORY = "memory."
"""Prefix of these tensors' names, so that none equals a name of the model or the optimizer."""


def share_row(tensor: Tensor) -> Tensor:
    """This rank's tensor as its row of one tensor over the world, ``[ranks, ...]``; no copy.

    All ranks need equal shapes and types. A process alone gets a plain tensor ``[1, ...]``.
    """
    row = tensor.detach().unsqueeze(0)
    if world_size() == 1:
        return row
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, row.device.type)
    return DTensor.from_local(row, mesh, [Shard(0)], run_check=False)


def take_row(saved: Tensor) -> Tensor | None:
    """What this rank gave to ``share_row``; None if the world had another size."""
    if isinstance(saved, DTensor):
        return saved.to_local()[0]
    return saved[0] if len(saved) == world_size() == 1 else None


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def ready_to_save(strategy: Strategy | None) -> Iterator[None]:
    """Inside, model and optimizer are ready to be saved or tested; all ranks must enter it."""
    if strategy is None:
        yield
        return
    strategy.before_save()
    try:
        yield
    finally:
        strategy.after_save()


def name_memory(strategy: Strategy | None) -> dict[str, Tensor]:
    """What a strategy wants to be saved, under its names in a checkpoint."""
    if strategy is None:
        return {}
    return {MEMORY + name: tensor.detach() for name, tensor in strategy.memory().items()}


def find_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of which each rank has a row of its own."""
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}


def describe_memory(strategy: Strategy | None, memory: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the manifest says of the strategy's memory."""
    if strategy is None or not memory:
        return {}
    return {"memory": {"of": strategy.name, "rows": sorted(find_rows(memory))}}


def is_taken(
    manifest: CheckpointManifest, strategy: Strategy | None, say: Callable[[str], object]
) -> bool:
    """Whether a checkpoint has memory of this strategy; reports another strategy's memory."""
    saved = manifest.trainer.get("memory")
    if not saved:
        return False
    name = strategy.name if strategy else "this training"
    if saved["of"] != name:
        say(
            f"the checkpoint holds the state of strategy {saved['of']}, which {name} cannot use: "
            "loads only model and optimizer"
        )
    return bool(saved["of"] == name)


def read_memory(folder: Path, manifest: CheckpointManifest, ranks: Ranks) -> dict[str, Tensor]:
    """The memory of a checkpoint, for ``load_memory``; all ranks must call it.

    If the world has the checkpoint's size, each rank reads its rows. Rank 0 reads all else.
    """
    rows: dict[str, Tensor] = {}
    names = manifest.trainer["memory"]["rows"]
    if names and manifest.world_size == ranks.size:
        ranks.check_shared(folder)
        empty = allocate_tensors(folder, lambda name: name in names)
        rows = {name: share_row(tensor[0]) for name, tensor in empty.items()}
        read_shards(rows, folder, ranks.group)
    whole = ranks.spread(
        lambda: read_tensors(folder, lambda name: name.startswith(MEMORY) and name not in rows)
    )
    return {name.removeprefix(MEMORY): tensor for name, tensor in (rows | whole).items()}
