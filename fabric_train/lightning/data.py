"""The train loaders of a fit, cut into global batches where that can be done."""

from __future__ import annotations

import warnings
from functools import cache, partial
from typing import Any

from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, DistributedSampler

from fabric_train.trainers.companion import Companion
from fabric_train.trainers.loaders import Skipping, cut_loader, start_worker


class Data:
    """Prepares train loaders in Lightning's place, from before its own sampler is put in."""

    def __init__(self, trainer: Trainer, companion: Companion) -> None:
        self._trainer, self._companion = trainer, companion
        connector: Any = trainer._data_connector
        self._connector, self._prepare = connector, connector._prepare_dataloader
        connector._prepare_dataloader = self._take_over
        self._say = cache(companion.say)  # a loader may be prepared for each epoch
        self._opened_at: tuple[int, int] | None = None
        # An iterable data set with a length, in workers: ours share it rightly.
        warnings.filterwarnings("ignore", message="Your `IterableDataset` has `__len__` defined")

    def leave(self) -> None:
        """Lightning prepares loaders again."""
        del self._connector._prepare_dataloader

    def reopen(self) -> None:
        """Once the checkpoint is read: a schedule that asks for the number of steps
        (``estimated_stepping_batches``) has the loader opened before, at the first sample.
        """
        opened_at = self._opened_at
        if opened_at is not None and opened_at != self._place():
            iter(self._trainer.fit_loop._data_fetcher)  # type: ignore[arg-type]

    def _place(self) -> tuple[int, int]:
        loop = self._trainer.fit_loop
        ready = loop.epoch_loop.batch_progress.current.ready
        self._opened_at = self._trainer.current_epoch, ready
        return self._opened_at

    def _take_over(self, loader: Any, shuffle: bool, mode: Any) -> Any:
        if mode.value != "train":
            return self._prepare(loader, shuffle, mode)
        cut = None if self._is_a_share(loader) else cut_loader(loader, self._companion, self._place)
        return self._keep(self._prepare(loader, shuffle, mode)) if cut is None else cut

    def _is_a_share(self, loader: Any) -> bool:
        """Whether each rank's loader may read other samples already."""
        if self._trainer._accelerator_connector.use_distributed_sampler:
            return False
        sampler = getattr(loader, "sampler", None)
        return self._trainer.world_size > 1 and not isinstance(sampler, DistributedSampler)

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
