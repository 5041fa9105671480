"""Saves and resumes the training of any loop, replicated (DDP) or sharded, in the background;
refuses a checkpoint of another training.

saver = Saver(Path("checkpoints"), config={"width": 64})
resumed = saver.resume(model, optimizer)
step = resumed.step if resumed else 0
while step < steps:
    ...
    step += 1
    if saver.is_due(step):
        saver.save(step, model, optimizer)
saver.save(step, model, optimizer, block=True)
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fabric_train.checkpointing.checkpoint import Checkpoint, CheckpointStore
from fabric_train.checkpointing.commit import Save, SaveResult, tensor_files
from fabric_train.checkpointing.lineage import FencedError
from fabric_train.checkpointing.manifest import (
    CheckpointManifest,
    find_differences,
    refuse_another,
)
from fabric_train.checkpointing.memory import (
    describe_memory,
    find_rows,
    is_taken,
    name_memory,
    read_memory,
    ready_to_save,
)
from fabric_train.checkpointing.retention import Interval, Keep, Timer, observe_mtbf_s
from fabric_train.checkpointing.snapshot import (
    OPTIMIZER,
    Snapshot,
    StagedCopy,
    capture,
    is_state,
    read_shards,
    read_tensors,
    restore,
)
from fabric_train.communication.parts import as_pieces, is_sharded
from fabric_train.log import Log
from fabric_train.ranks import Ranks
from fabric_train.worker_env import read_generation

if TYPE_CHECKING:
    from fabric_train.storage import Storage
    from fabric_train.strategies.strategy import Strategy

GROUP_TIMEOUT_S = 86_400.0
"""How long a rank waits for the others' files: rank 0 may have terabytes to check. A dead rank is
noticed by its closed connection, a hanging rank by the agent."""


class Saver:
    """The checkpoints of one training; every rank makes one, and calls the same methods.

    ``config``: what a run must have in common with the checkpoint that it resumes. Rank 0 alone
    reads and writes a replicated state, so the other nodes need not see the folder; all ranks read
    and write a sharded state, and a strategy's memory that differs between ranks. Takes host memory
    for one copy of what a rank writes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any] | None = None,
        keep: Keep | None = None,
        interval: Interval | None = None,
        asynchronous: bool = True,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = CheckpointStore(folder, keep=keep)
        self.config = dict(config or {})
        self.may_differ: frozenset[str] = frozenset()
        """Keys of ``config`` that a resumed run need not share."""
        self.only_trained = False
        """Whether checkpoints leave out weights that need no gradient. A resume takes these from
        the model, so ``config`` has to identify them."""
        self.log = Log()
        """Its rows are saved with the checkpoints; set it before ``look`` and ``resume``."""
        self.storage: Storage | None = None
        """Where rank 0 copies checkpoints and logs to; set it before ``look`` and ``resume``."""
        self.newest_generation: Callable[[], int | None] = lambda: None
        """The newest generation that this group knows of, which may be its next one."""
        self.check_world: Callable[[], object] = lambda: None
        """Raises where this group's world is lost, and another one follows."""
        self._interval, self._asynchronous = interval or Interval(), asynchronous
        self._say, self._clock = say, clock
        self._staged_copy = StagedCopy()
        self._timer = Timer(self._interval, observe_mtbf_s((), 0.0), clock)
        self._thread: threading.Thread | None = None
        self._outcome: SaveResult | BaseException | None = None
        self._newest_checkpoint: Checkpoint | None = None
        self._committed_step: int | None = None
        self._was_given_up = False
        """Whether the last save was, as this group's next generation had been taken meanwhile."""
        self.blocked_s = 0.0
        """How long the last ``save`` blocked the training, waiting included."""
        self.newest: Path | None = None
        """The last checkpoint that was committed or loaded, if this rank knows it."""

    @cached_property
    def ranks(self) -> Ranks:
        """All ranks of the present world."""
        return Ranks(GROUP_TIMEOUT_S)

    # -- resuming ------------------------------------------------------------------------------

    def resume(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        strategy: Strategy | None = None,
        *,
        only_read: bool = False,
    ) -> CheckpointManifest | None:
        """Loads the newest checkpoint of the history; None if there is none.

        ``strategy`` gets its memory back. With ``only_read`` nothing is written to the folder, and
        nothing may be saved afterwards. Blocks; prints which checkpoints were skipped, and why.
        Raises, on all ranks, InputError for a checkpoint of another training or a folder that the
        nodes have to share and do not, and FencedError if a later group has begun.
        """
        sharded = is_sharded(model)
        shapes = self._capture(model, optimizer).shapes if sharded or self.ranks.leads else {}
        if sharded:
            shapes = self.ranks.merge(shapes)
        has_rows = strategy is not None and strategy.has_rows
        shared = bool(sharded or has_rows or find_rows(name_memory(strategy)))
        checkpoint = self.begin(shapes, shared=shared, only_read=only_read)
        if checkpoint is None:
            return None
        if sharded:
            live = self._capture(model, optimizer, whole=True)
            for name, tensor in live.tensors.items():
                if name.startswith(OPTIMIZER):
                    tensor.zero_()  # the state of a weight that has had no gradient so far
            read_shards(as_pieces(live.tensors, live.cuts), checkpoint.path, self.ranks.group)
            tensors = live.tensors
        else:
            tensors = self.ranks.spread(lambda: read_tensors(checkpoint.path, is_state))
        values = checkpoint.manifest.trainer["optimizer"]
        restore(Snapshot(tensors=tensors, values=values), model, optimizer)
        say = self._say if self.ranks.leads else lambda text: None
        taken = is_taken(checkpoint.manifest, strategy, say)
        memory = read_memory(checkpoint.path, checkpoint.manifest, self.ranks) if taken else {}
        if strategy is not None:
            strategy.steps = checkpoint.manifest.step
            strategy.load_memory(memory)
        return checkpoint.manifest

    def begin(
        self, shapes: Mapping[str, list[int]], *, shared: bool, only_read: bool = False
    ) -> Checkpoint | None:
        """Takes the folder over and finds the newest checkpoint, without loading it.

        ``shapes``: of the model's tensors, to be compared with the checkpoint's. With ``shared``
        all ranks have to see the folder. Blocks; raises what ``resume`` raises.
        """
        newest = self._newest_checkpoint = self._newest_checkpoint or self._find_newest()
        note = self.ranks.from_rank_zero(lambda: self._begin(newest, shapes, only_read=only_read))
        if shared:
            self.ranks.check_shared(note)
        mtbf_s = self.ranks.from_rank_zero(
            lambda: observe_mtbf_s(self.store.read_starts(), time.time())
        )
        self._timer = Timer(self._interval, mtbf_s, self._clock)
        if newest is not None:
            self.newest, self._committed_step = newest.path, newest.manifest.step
            if not only_read:
                self.log.restore(newest.manifest.trainer.get("log", ()), newest.manifest.step)
                self._offer(newest.path)
        return newest

    def look(self) -> CheckpointManifest | None:
        """What ``resume`` will load, for decisions that come before the model is built.

        Blocks, and reads every byte of the checkpoint; prints why others were skipped. Either all
        ranks call it or none. Raises InputError for another format, OSError if the storage fails.
        """
        self._newest_checkpoint = self._find_newest()
        return self._newest_checkpoint.manifest if self._newest_checkpoint else None

    def _find_newest(self) -> Checkpoint | None:
        def read_newest() -> Checkpoint | None:
            self.store.open()
            newest, skipped = self.store.read_newest()
            if self.storage and self.storage.fetch(self.store, newest):
                newest, skipped = self.store.read_newest()
            for note in skipped:
                self._say(note)
            return newest

        return self.ranks.from_rank_zero(read_newest)

    def _begin(
        self, checkpoint: Checkpoint | None, shapes: Mapping[str, list[int]], *, only_read: bool
    ) -> Path:
        if checkpoint:
            saved, current = (
                {key: value for key, value in config.items() if key not in self.may_differ}
                for config in (checkpoint.manifest.config, self.config)
            )
            differences = find_differences(saved, current)
            before = checkpoint.manifest.tensors
            if self.only_trained:  # this run may train more weights
                shapes = {name: shape for name, shape in shapes.items() if name in before}
            differences += find_differences(before, shapes)
            if differences:
                raise refuse_another(checkpoint.path, differences, "--checkpoint_dir")
        if only_read:
            return self.store.folder
        given = read_generation(self.store.folder, os.environ)
        return self.store.note_of(self.store.begin(given, checkpoint))

    # -- saving --------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Goes on in another world with the state that the ranks have; loads nothing.

        All ranks call it; a save in flight is given up. Raises FencedError if a later group began.
        """
        self.__dict__.pop("ranks", None)  # those of the world before
        self._thread, self._outcome = None, None

        def begin() -> Checkpoint | None:
            self.store.open()
            checkpoint, _ = self.store.read_newest(thorough=False)
            self.store.begin(read_generation(self.store.folder, os.environ), checkpoint)
            return checkpoint

        checkpoint = self.ranks.from_rank_zero(begin)
        if checkpoint is not None:
            self.newest, self._committed_step = checkpoint.path, checkpoint.manifest.step

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint should follow ``step``, for a loop that saves a replicated state.

        With an interval in seconds only rank 0 returns True, and then saves alone. If all ranks
        must take part, let them agree on ``is_time_due``.
        """
        return self.is_step_due(step) or self.is_time_due()

    def is_step_due(self, step: int) -> bool:
        """Whether the interval in steps ends with ``step``: the same on all ranks."""
        return self._timer.is_step_due(step)

    def is_time_due(self) -> bool:
        """Whether the interval in seconds is over; always False on ranks other than 0."""
        return self.ranks.leads and self._timer.is_time_due()

    def settle(self) -> tuple[int, Path] | None:
        """Waits for the save in flight; returns the newest checkpoint's step and path on all ranks.

        All ranks must call it.
        """
        self.wait()
        step, path = self._committed_step, self.newest
        newest = None if step is None or path is None else (step, path)
        return self.ranks.from_rank_zero(lambda: newest)

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        trainer: Mapping[str, Any] | None = None,
        score: float | None = None,
        block: bool = False,
        strategy: Strategy | None = None,
    ) -> SaveResult | None:
        """Commits the state after ``step`` steps, in the background unless ``block``.

        Also saves ``strategy``'s memory, of which all ranks may write parts. First waits for the
        previous save, and returns its result if no call has returned it yet; with ``block`` returns
        this save's result. Does not save a step twice. Prints a disk error instead of raising it.
        All ranks must call it. Raises FencedError if a later group has begun.
        """
        began_at = self._clock()
        before = self.wait()
        is_new, begun = step != self._committed_step, False
        with ready_to_save(strategy):
            if is_new:
                begun = self._begin_save(step, model, optimizer, strategy, trainer or {}, score)
        if begun and (block or not self._asynchronous):
            before = self.wait()
            if self._was_given_up and step != self._committed_step:
                with ready_to_save(strategy):
                    self._begin_save(step, model, optimizer, strategy, trainer or {}, score)
                before = self.wait()
        self.blocked_s = self._clock() - began_at
        if is_new:
            self._timer.on_saved(self.blocked_s)
        return before

    def save_files(
        self,
        step: int,
        write: Callable[[Path], list[str]],
        *,
        tensors: Mapping[str, list[int]],
        trainer: Mapping[str, Any],
    ) -> SaveResult | None:
        """Commits the files that ``write`` puts into a folder on each rank; blocks.

        ``write`` waits for the disk, and gives the names of this rank's files. Otherwise as
        ``save``; ``tensors`` and ``trainer`` go into the manifest.
        """
        began_at = self._clock()
        result = None
        if step != self._committed_step:
            manifest = self._describe(step, tensors, trainer, None)
            self._outcome = Save(self.store, self.ranks, manifest, write).run(0.0)
            if isinstance(self._outcome, SaveResult):
                spent_s = self._clock() - began_at
                self._outcome = replace(self._outcome, blocked_s=spent_s, write_s=0.0)
            result = self.poll()
            self._timer.on_saved(self._clock() - began_at)
        self.blocked_s = self._clock() - began_at
        return result

    def wait(self) -> SaveResult | None:
        """Waits for the save in flight, if any; returns how it ended, once."""
        self.join(None)
        return self.poll()

    def join(self, limit_s: float | None) -> None:
        """Waits up to ``limit_s`` for the save in flight; from any thread, never raises."""
        if self._thread is not None:
            self._thread.join(limit_s)

    def close(self) -> None:
        """After a successful training: waits until loggers and storage have everything."""
        self.log.close()
        if self.storage:
            self.storage.close()

    def _offer(self, path: Path) -> None:
        if self.storage:
            self.storage.offer(path)

    def poll(self) -> SaveResult | None:
        """The last save's result, once; None while it runs. Raises FencedError if it was fenced."""
        if self._thread is not None and self._thread.is_alive():
            return None
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, FencedError) and self._is_superseded():
            # By the generation of this group's own next world.
            self._was_given_up = True
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None and outcome.path:
            self.newest, self._committed_step = outcome.path, outcome.step
            self.log.commit(outcome.step)
            self._offer(outcome.path)
            if outcome.error and self.ranks.leads:
                self._say(f"the checkpoint of step {outcome.step} was written, but {outcome.error}")
        elif outcome is not None and self.ranks.leads:
            last = (
                f"the last good one is {self.newest}" if self.newest else "there is no earlier one"
            )
            self._say(f"no checkpoint of step {outcome.step} was written: {outcome.error}; {last}")
        return outcome

    def _is_superseded(self) -> bool:
        newest = self.newest_generation()
        return self.ranks.leads and newest is not None and newest > self.store.writer.generation

    def _capture(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, whole: bool = False
    ) -> Snapshot:
        return capture(model, optimizer, whole=whole, only_trained=self.only_trained)

    def _describe(
        self,
        step: int,
        tensors: Mapping[str, list[int]],
        trainer: Mapping[str, Any],
        score: float | None,
    ) -> CheckpointManifest:
        return CheckpointManifest(
            step=step,
            # Only rank 0 knows the writer, and only rank 0's manifest is written.
            generation=self.store.writer.generation if self.ranks.leads else 0,
            attempt=self.store.writer.attempt if self.ranks.leads else 0,
            world_size=self.ranks.size,
            files={},
            tensors=tensors,
            trainer={**trainer, "log": rows} if (rows := self.log.state()) else trainer,
            config=self.config,
            versions={"torch": torch.__version__, "python": platform.python_version()},
            score=score,
        )

    def _begin_save(
        self,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        strategy: Strategy | None,
        trainer: Mapping[str, Any],
        score: float | None,
    ) -> bool:
        """Copies what this rank writes, and starts to write it; False if it writes nothing."""
        self._was_given_up = False
        if self._is_superseded():
            newest, _ = self.store.read_newest(thorough=False)
            self.store.begin(self.newest_generation(), newest)
        memory = name_memory(strategy)
        rows = find_rows(memory)
        sharded = is_sharded(model)
        if not (sharded or rows or self.ranks.leads):
            return False
        snapshot = Snapshot(tensors=rows, values={})
        if sharded or self.ranks.leads:
            state = self._capture(model, optimizer)
            snapshot = replace(state, tensors={**state.tensors, **memory})
        began_at = self._clock()
        staged = self._staged_copy.copy(snapshot.tensors)
        values = {"optimizer": dict(snapshot.values), **describe_memory(strategy, memory)}
        manifest = self._describe(step, snapshot.shapes, {**trainer, **values}, score)
        ranks = self.ranks if sharded or rows else Ranks()
        _ = ranks.group  # made by all now, and not in the background
        write = tensor_files(as_pieces(staged, snapshot.cuts), ranks)
        work = Save(self.store, ranks, manifest, write)
        blocked_s = self._clock() - began_at
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def run() -> None:
            if device is not None:
                # A new thread starts on the first device, where the writer would make a context.
                torch.cuda.set_device(device)
            outcome = work.run(blocked_s)
            if self._thread is threading.current_thread():
                self._outcome = outcome

        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()
        return True
