"""One save, from staged tensors to a committed checkpoint; runs beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from fabric_train.checkpoint import CheckpointStore
from fabric_train.lineage import FencedError
from fabric_train.manifest import CheckpointManifest, describe_files
from fabric_train.snapshot import write_tensors

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """How one save ended; ``path`` is None where it failed, ``error`` then says why.

    ``blocked_s``: what it kept the training from its work; ``write_s``: how long it took beside it.
    """

    step: int
    path: Path | None
    error: str = ""
    blocked_s: float = 0.0
    write_s: float = 0.0
    total_bytes: int = 0


@dataclass(frozen=True)
class Save:
    """What one save needs; ``group`` only where all ranks hold shards."""

    store: CheckpointStore
    group: dist.ProcessGroup | None
    manifest: CheckpointManifest
    tensors: Mapping[str, torch.Tensor]
    leads: bool

    def run(self, blocked_s: float) -> SaveResult | FencedError:
        """Never raises: how it ended is what it gives; ``blocked_s`` is passed on."""
        began_at = time.monotonic()
        step = self.manifest.step
        try:
            path, total_bytes = self._write()
        except FencedError as error:
            return error
        except (Exception, CheckpointException) as error:
            # Nothing that a disk does may end the training: it goes on from the earlier one.
            return SaveResult(step=step, path=None, error=describe(error), blocked_s=blocked_s)
        return SaveResult(
            step=step,
            path=path,
            blocked_s=blocked_s,
            write_s=time.monotonic() - began_at,
            total_bytes=total_bytes,
        )

    def _write(self) -> tuple[Path, int]:
        staging = self._share(lambda: self.store.stage(self.manifest.step))
        try:
            names = write_tensors(self.tensors, staging, self.group)
            files = self._merge(lambda: describe_files(staging, names))
            manifest = replace(self.manifest, files=files)
            path = self._share(lambda: self.store.commit(staging, manifest))
        except BaseException:
            if self.leads:
                self.store.discard(staging)
            raise
        return path, manifest.total_bytes

    def _share(self, act: Callable[[], Path]) -> Path:
        """Done by rank 0; where it fails, it fails on all ranks."""
        outcome: list[Any] = [None]
        if self.leads:
            outcome = [_attempt(act)]
        if self.group is not None:
            dist.broadcast_object_list(outcome, src=0, group=self.group)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]  # type: ignore[no-any-return]

    def _merge(self, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """All ranks' results together; where one fails, all do."""
        outcomes: list[Any] = [_attempt(act)]
        if self.group is not None:
            mine, outcomes = outcomes[0], [None] * dist.get_world_size(self.group)
            dist.all_gather_object(outcomes, mine, group=self.group)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return {name: entry for files in outcomes for name, entry in files.items()}


def _attempt(act: Callable[[], T]) -> T | Exception:
    try:
        return act()
    except Exception as error:
        return error


def describe(error: BaseException) -> str:
    """An error in a few words; DCP's own carry the traces of all ranks."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {describe(cause)}" if len(error.failures) > 1 else describe(cause)
    text = str(error).partition("\n")[0]
    return text or type(error).__name__
