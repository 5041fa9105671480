"""The callback: checkpoints, stopping and resuming of a Lightning training, and with which
strategies it does nothing.

Lightning 2.6 has no hooks for some of this. So the callback replaces methods of Lightning's objects
during a fit: how a loader is prepared (``data``), and which checkpoint is read (``_read_newest``).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from fabric_train.checkpointing.retention import KEPT
from fabric_train.determinism import seed_generators
from fabric_train.lightning.data import Data
from fabric_train.lightning.logs import continue_logs, copy_logs, describe_logs, is_a
from fabric_train.lightning.sums import EpochSums
from fabric_train.trainers import Companion, parse_env

STATE_FILE = "checkpoint.ckpt"
KEY = "fabric_train"
"""The key of what the callback adds to Lightning's checkpoint."""


def read_world() -> dict[str, int]:
    """``devices`` and ``num_nodes`` for ``Trainer(**read_world())``, as torchrun or the launcher
    started this process; empty without them."""
    world = parse_env().world
    return {"devices": world.local_world_size, "num_nodes": world.num_nodes} if world else {}


class ContinuityCallback(Callback):
    """Commits, stops and resumes a fit; with neither a folder nor the launcher it does nothing.

    Without an interval Young's formula chooses one. Steps are optimizer steps. ``folder`` is
    CHECKPOINT_DIR by default; all nodes share it. Each fit of a script needs its own folder.
    """

    def __init__(
        self,
        folder: str | None = None,
        every_n_steps: int | None = None,
        every_s: float | None = None,
        keep_last: int = KEPT,
        keep_every_n_steps: int | None = None,
    ) -> None:
        self._companion = Companion(folder, every_n_steps, every_s, keep_last, keep_every_n_steps)
        self._trainer: Trainer | None = None
        self._resumed: dict[str, Any] | None = None

    # -- before the first batch ----------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Chooses the checkpoint to go on from, once there is a process group."""
        companion = self._companion
        fit: Any = trainer  # some attributes set here are not declared
        if stage != "fit":
            return
        others = [each for each in fit.callbacks if each is not self]
        if fit.fast_dev_run or not companion.may_act(lambda: find_obstacle(trainer)):
            fit.callbacks = others
            return
        checkpoint = companion.open(
            pl_module,
            self._write,
            self._describe,
            kind=f"lightning {type(pl_module).__qualname__}",
            seed=int(os.environ.get("PL_GLOBAL_SEED", 0)),
            world_size=trainer.world_size,
            join="Trainer(**fabric_train.lightning.read_world(), ...)",
        )
        self._trainer = trainer
        self._sums = EpochSums(trainer, companion.saver.ranks)
        self._data = Data(trainer, companion)
        # Before other callbacks, so that a checkpoint at a batch's start holds nothing of it.
        fit.callbacks = [self, *others]
        if checkpoint is not None:
            continue_logs(trainer, checkpoint.path, companion.state.get("logs", []))
            self._read_newest(trainer, checkpoint.path)
        if companion.env.node_dir is not None:
            # SIGTERM and Slurm's signals belong to the launcher: no broadcast in a handler.
            fit._signal_connector.register_signal_handlers = lambda: None

    def _read_newest(self, trainer: Trainer, path: Path) -> None:
        """Makes Lightning read our checkpoint, whatever ``fit(ckpt_path=...)`` names.

        ``ckpt_path`` is where the training began; since then it has written newer checkpoints. All
        ranks read the one that rank 0 chose after it had fenced the earlier worker group.
        """
        connector: Any = trainer._checkpoint_connector
        read_start = connector.resume_start

        def resume_start(_path: Any = None, weights_only: bool | None = None) -> None:
            del connector.resume_start
            # Hyperparameters may be of any class, so loading them runs code of the pickle.
            read_start(
                path / STATE_FILE, weights_only=False if weights_only is None else weights_only
            )

        connector.resume_start = resume_start

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Reads what ``_copy_state`` has added to the checkpoint."""
        if self._trainer is None or KEY not in checkpoint:
            return
        self._resumed = checkpoint[KEY]
        trainer.should_stop = self._resumed["should_stop"]
        # It warns of loaders that cannot resume; ours begin where the training stands.
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the metrics and begins; Lightning has loaded everything else."""
        if self._resumed is not None:
            metrics = self._resumed["callback_metrics"]
            trainer._logger_connector._callback_metrics.update(metrics)
            self._sums.load(self._resumed["sums"])
            self._data.reopen()
        self._companion.begin(trainer.global_step, trainer.estimated_stepping_batches)

    # -- between batches -----------------------------------------------------------------------

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Saves if it is due: the last batch, its validation and its log rows are done."""
        if self._resumed is not None:
            self._put_right(trainer)
        self._companion.before_batch(trainer.global_step)
        seed = self._companion.seed
        seed_generators(seed, trainer.current_epoch, batch_idx, trainer.global_rank)

    def _put_right(self, trainer: Trainer) -> None:
        """Corrects what Lightning's restart in the middle of an epoch leaves wrong."""
        assert self._resumed is not None
        loop = trainer.fit_loop
        # Lightning counts a step too many if a validation was due, which shifts all logs.
        loop.epoch_loop._batches_that_stepped = self._resumed["batches_that_stepped"]
        # Otherwise ReduceLROnPlateau skips this epoch.
        loop._restarting = False
        self._resumed = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Notes progress."""
        self._sums.add_loaded()

        def read_loss() -> float:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            return float(loss) if isinstance(loss, torch.Tensor) else float("nan")

        self._companion.after_batch(trainer.global_step, read_loss)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drops the sums of the epoch."""
        self._sums.forget()

    # -- the end -------------------------------------------------------------------------------

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Commits the last state."""
        self._companion.finish(trainer.global_step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Cleans up after a fit that ended without an error."""
        if self._trainer is not None:
            self._data.leave()
            self._trainer = None
            self._companion.close()

    # -- checkpoints ---------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        assert self._trainer is not None
        return {"logs": describe_logs(self._trainer)}

    def _write(self, folder: Path) -> None:
        trainer = self._trainer
        assert trainer is not None
        checkpoint = self._copy_state(trainer)
        # Not trainer.save_checkpoint: if the disk of one rank is full, the others would wait.
        trainer.strategy.save_checkpoint(checkpoint, folder / STATE_FILE)
        if trainer.is_global_zero:
            copy_logs(trainer, folder)

    def _copy_state(self, trainer: Trainer) -> dict[str, Any]:
        """Lightning's checkpoint, as it would be between two batches."""
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        epoch = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]
        is_between_epochs = epoch["ready"] == epoch["completed"]
        for name, counts in (("total", progress["total"]), ("current", progress["current"])):
            done = 0 if name == "current" and is_between_epochs else counts["completed"]
            counts |= dict.fromkeys(counts, done)
        progress["is_last_batch"] = False
        checkpoint[KEY] = {
            "batches_that_stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "should_stop": trainer.should_stop,
            "callback_metrics": dict(trainer._logger_connector._callback_metrics),
            "sums": [] if is_between_epochs else self._sums.collect(),
        }
        return checkpoint


def find_obstacle(trainer: Trainer) -> str | None:
    """Why the callback cannot keep its promises with this Trainer; None if it can."""
    strategy: Any = trainer.strategy
    if not is_a(strategy, "SingleDeviceStrategy", "DDPStrategy", "FSDPStrategy"):
        return f"the strategy {type(strategy).__name__} is none of ddp, fsdp and one device"
    if is_a(strategy, "DDPStrategy") and strategy._start_method != "popen":
        return f"the strategy ddp starts processes by {strategy._start_method}"
    if is_a(strategy.checkpoint_io, "AsyncCheckpointIO"):
        return "AsyncCheckpointIO writes after a checkpoint was committed"
    return None
