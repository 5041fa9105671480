"""The train loaders of a fit, cut into global batches where that can be done."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import RunningStage
from torch.utils.data import DataLoader, DistributedSampler

from fabric_train.trainers.companion import Companion, ending
from fabric_train.trainers.loaders import (
    EpochCut,
    Skipping,
    check_cut,
    cut_loader,
    find_order,
    find_source,
    start_worker,
)


class Data:
    """Prepares train loaders in Lightning's place, from before its own sampler is put in."""

    def __init__(self, trainer: Trainer, companion: Companion) -> None:
        self._trainer, self._companion = trainer, companion
        connector: Any = trainer._data_connector
        self._connector, self._prepare = connector, connector._prepare_dataloader
        connector._prepare_dataloader = self._take_over
        self._told: set[str] = set()
        self.samples = 0
        """Of a global batch."""
        # An iterable data set with a length, in workers: ours share it rightly.
        warnings.filterwarnings("ignore", message="Your `IterableDataset` has `__len__` defined")

    def leave(self) -> None:
        """Lightning prepares loaders again."""
        del self._connector._prepare_dataloader

    def describe(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"global_batch_size": self.samples}

    def _place(self) -> tuple[int, int]:
        loop = self._trainer.fit_loop
        return self._trainer.current_epoch, loop.epoch_loop.batch_progress.current.ready

    def _take_over(self, loader: Any, shuffle: bool, mode: RunningStage) -> Any:
        if mode != RunningStage.TRAINING:
            return self._prepare(loader, shuffle, mode)
        order = find_order(loader)
        if self._is_a_share(loader) or (order is None and find_source(loader) is None):
            return self._keep(self._prepare(loader, shuffle, mode))
        return cut_loader(loader, self._plan(loader, order), self._place)

    def _is_a_share(self, loader: Any) -> bool:
        """Whether each rank's loader may read other samples already."""
        if self._trainer._accelerator_connector.use_distributed_sampler:
            return False
        sampler = getattr(loader, "sampler", None)
        return self._trainer.world_size > 1 and not isinstance(sampler, DistributedSampler)

    def _plan(self, loader: Any, order: Any) -> EpochCut:
        companion, world_size = self._companion, self._trainer.world_size
        size = len(loader.dataset if order is None else order)
        companion.agree_on_facts(
            samples=size, batch_size=loader.batch_size, drop_last=loader.drop_last
        )
        # As the training began, whatever the world is now.
        total = companion.state.get("global_batch_size") or loader.batch_size * world_size
        with ending():
            check_cut(total, world_size)
        self.samples = total
        cut = EpochCut(
            size=size,
            global_batch_size=total,
            rank=self._trainer.global_rank,
            world_size=world_size,
            drop_last=loader.drop_last,
            seed=companion.seed,
        )
        if 0 < cut.tail < world_size:
            self._say(
                f"the last batch of an epoch has {cut.tail} samples for {world_size} processes, "
                "so some are seen twice; DataLoader(drop_last=True) leaves it out"
            )
        return cut

    def _keep(self, loader: Any) -> Any:
        kind = type(loader).__name__
        if isinstance(loader, _Stateful):
            self._say(f"the train loader ({kind}) keeps its own place, of rank 0 alone")
            return loader
        self._say(
            f"the train loader ({kind}) is no DataLoader of a data set with an index or with "
            "read_from, or is cut for the ranks already: a resume reads its epoch again and leaves "
            "out what was trained"
        )
        if isinstance(loader, DataLoader):
            loader.worker_init_fn = partial(start_worker, loader.worker_init_fn)
        before = self._companion.found and self._companion.found.manifest.world_size
        if before not in (None, self._trainer.world_size):
            self._say(f"{before} processes read it before, so samples are lost or seen twice")
        companion = self._companion
        return Skipping(loader, companion.seed, self._trainer.global_rank, self._place)

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._companion.say(text)
