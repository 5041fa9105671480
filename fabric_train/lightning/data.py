"""The train loaders of a fit, cut into global batches where possible."""

from __future__ import annotations

import warnings
from functools import cache, partial
from typing import Any

from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, DistributedSampler

from fabric_train.sampling.loading import Skipping, start_worker
from fabric_train.trainers import Companion, cut_loader


class Data:
    """Prepares train loaders in Lightning's place, before it puts its own sampler in."""

    def __init__(self, trainer: Trainer, companion: Companion) -> None:
        self._trainer, self._companion = trainer, companion
        connector: Any = trainer._data_connector
        self._connector, self._prepare = connector, connector._prepare_dataloader
        connector._prepare_dataloader = self._take_over
        self._say = cache(companion.say)  # a loader may be prepared for each epoch
        self._opened_at: tuple[int, int] | None = None
        # It warns of an iterable data set with a length; our workers share it correctly.
        warnings.filterwarnings("ignore", message="Your `IterableDataset` has `__len__` defined")

    def leave(self) -> None:
        """Lets Lightning prepare loaders again."""
        del self._connector._prepare_dataloader

    def reopen(self) -> None:
        """Opens the loader at the resumed place, after the checkpoint is read: a schedule that asks
        for ``estimated_stepping_batches`` has opened it earlier, at the first sample."""
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
        """Whether the ranks' loaders may already read different samples."""
        if self._trainer._accelerator_connector.use_distributed_sampler:
            return False
        sampler = getattr(loader, "sampler", None)
        return self._trainer.world_size > 1 and not isinstance(sampler, DistributedSampler)

    def _keep(self, loader: Any) -> Any:
        kind = type(loader).__name__
        if isinstance(loader, _Stateful):
            self._say(f"the train loader ({kind}) saves its own position, but only that of rank 0")
            return loader
        self._say(
            f"the train loader ({kind}) cannot start in mid-epoch (its data set has neither an "
            "index nor read_from, it makes its own batches, or it is already split between ranks): "
            "a resume reads the epoch again and skips trained batches"
        )
        if isinstance(loader, DataLoader):
            loader.worker_init_fn = partial(start_worker, loader.worker_init_fn)
        before = self._companion.checkpoint and self._companion.checkpoint.manifest.world_size
        if before not in (None, self._trainer.world_size):
            self._say(f"{before} processes read it before, so samples are lost or seen twice")
        companion = self._companion
        return Skipping(loader, companion.seed, self._trainer.global_rank, self._place)
