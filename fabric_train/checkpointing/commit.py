"""One save, from staged tensors to a committed checkpoint; runs beside the training. A disk error
ends no training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException

from fabric_train.checkpointing.checkpoint import CheckpointStore
from fabric_train.checkpointing.lineage import FencedError
from fabric_train.checkpointing.manifest import CheckpointManifest, describe_files
from fabric_train.checkpointing.snapshot import list_own_files, write_tensors
from fabric_train.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """How a save ended; if it failed, ``path`` is None and ``error`` says why.

    With a ``path``, ``error`` says what failed after the commit.

    ``blocked_s``: how long it blocked the training; ``write_s``: how long it ran beside it.
    """

    step: int
    path: Path | None
    error: str = ""
    blocked_s: float
    write_s: float = 0.0
    total_bytes: int = 0


@dataclass(frozen=True)
class Save:
    """What one save needs; ``ranks`` are those that hold parts of the state.

    ``write`` puts this rank's files into a folder, waits for the disk, and gives their names.
    """

    store: CheckpointStore
    ranks: Ranks
    manifest: CheckpointManifest
    write: Callable[[Path], list[str]]

    def run(self, blocked_s: float) -> SaveResult | FencedError:
        """Writes and commits; never raises. ``blocked_s`` is copied into the result."""
        began_at = time.monotonic()
        step = self.manifest.step
        try:
            path, error_after, total_bytes = self._write()
        except FencedError as error:
            return error
        except (Exception, CheckpointException) as error:
            # A disk error must never end the training, which still has the earlier checkpoint.
            return SaveResult(step=step, path=None, error=describe(error), blocked_s=blocked_s)
        return SaveResult(
            step=step,
            path=path,
            error=error_after,
            blocked_s=blocked_s,
            write_s=time.monotonic() - began_at,
            total_bytes=total_bytes,
        )

    def _write(self) -> tuple[Path, str, int]:
        staging = self.ranks.from_rank_zero(lambda: self.store.stage(self.manifest.step))
        try:
            # Otherwise each node would write its ranks' files into a folder of its own.
            self.ranks.check_shared(staging)
            parts = self.ranks.gather_done(lambda: describe_files(staging, self.write(staging)))
            files = {name: entry for part in parts for name, entry in part.items()}
            manifest = replace(self.merge_manifests(), files=files)
            path, error = self.ranks.from_rank_zero(lambda: self.store.commit(staging, manifest))
        except BaseException:
            if self.ranks.leads:
                self.store.discard(staging)
            raise
        return path, error, manifest.total_bytes

    def merge_manifests(self) -> CheckpointManifest:
        """This rank's manifest with all ranks' names: a pipeline's rank knows only its own."""
        manifest = self.manifest
        values = self.ranks.merge(manifest.trainer.get("optimizer", {}))
        return replace(
            manifest,
            tensors=self.ranks.merge(manifest.tensors),
            trainer={**manifest.trainer, "optimizer": values},
        )


def tensor_files(tensors: Mapping[str, torch.Tensor], ranks: Ranks) -> Callable[[Path], list[str]]:
    """A ``Save.write`` that puts tensors into files of ``torch.distributed.checkpoint``.

    The writer raises OSError or CheckpointException.
    """

    def write(folder: Path) -> list[str]:
        write_tensors(tensors, folder, ranks.group)
        return list_own_files(folder, ranks.group)

    return write


def describe(error: BaseException) -> str:
    """An error in one line; DCP's errors hold the traces of all ranks."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {describe(cause)}" if len(error.failures) > 1 else describe(cause)
    text = str(error).partition("\n")[0]
    return text or type(error).__name__
