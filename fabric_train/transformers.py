"""Checkpoints, stops and exact resumes for scripts with Hugging Face's Trainer (transformers 5).

from fabric_train.transformers import with_continuity
trainer = with_continuity(Trainer(...))
trainer.train()

Callbacks do not see the Trainer, so the script passes it. Methods are replaced on that object only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput

from fabric_train.determinism import seed_generators
from fabric_train.trainers import Companion, cut_loader

SUMS_FILE = "sums.json"
T = TypeVar("T", bound=Trainer)


def with_continuity(trainer: T, folder: str | None = None, **options: Any) -> T:
    """The same Trainer, whose ``train`` commits, stops and resumes.

    Options are those of Lightning's ``ContinuityCallback``. Without a folder and the launcher it
    changes nothing. ``train`` ends the process for bad input.
    """
    companion = Companion(folder, **options)
    if companion.may_act(lambda: find_obstacle(trainer)):
        trainer.add_callback(TrainerContinuity(trainer, companion))
    return trainer


def find_obstacle(trainer: Any) -> str | None:
    """Why the promises cannot be kept with this Trainer; None if they can."""
    if trainer.is_deepspeed_enabled or trainer.args.parallel_mode.value not in (
        "distributed",
        "not_parallel",
    ):
        return "the Trainer trains in another way than ddp, fsdp and one device"
    if trainer.accelerator.dataloader_config.split_batches or trainer.args.auto_find_batch_size:
        return "split_batches and auto_find_batch_size change what a batch is"
    return None


class TrainerContinuity(TrainerCallback):
    """Stands between a Trainer and a Companion."""

    def __init__(self, trainer: Any, companion: Companion) -> None:
        self._trainer, self._companion = trainer, companion
        self._train, self._load_data = trainer.train, trainer.get_train_dataloader
        self._updates_in_epoch = 1
        trainer.train, trainer.get_train_dataloader = self.train, self.get_train_dataloader

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> TrainOutput:
        """Continues from our checkpoint, if there is one, whichever one the script names."""
        trainer, companion = self._trainer, self._companion
        checkpoint = companion.open(
            trainer.model,
            self._write,
            lambda: {"stopped_early": self._is_stopped_early()},
            kind=f"transformers {type(trainer.model).__qualname__}",
            seed=trainer.args.data_seed or trainer.args.seed,
            world_size=trainer.args.world_size,
            join="TrainingArguments(use_cpu=not torch.cuda.is_available())",
        )
        if checkpoint is not None:
            resume_from_checkpoint = str(checkpoint.path)
            # Otherwise early stopping starts to count again.
            trainer.args.restore_callback_states_from_checkpoint = True
        if checkpoint is not None and companion.state.get(
            "stopped_early"
        ):  # the loop would take one more step
            trainer._load_from_checkpoint(resume_from_checkpoint)
            trainer.state = TrainerState.load_from_json(f"{checkpoint.path}/{TRAINER_STATE_NAME}")
            return TrainOutput(trainer.state.global_step, 0.0, {})
        output = self._train(resume_from_checkpoint=resume_from_checkpoint, **options)
        companion.close()
        return output

    def get_train_dataloader(self) -> Any:
        """The Trainer's own loader, cut for the ranks here instead of by accelerate."""
        trainer = self._trainer
        prepare = trainer.accelerator.prepare
        trainer.accelerator.prepare = lambda loader: loader
        try:
            loader = self._load_data()
        finally:
            trainer.accelerator.prepare = prepare
        # The Trainer cannot seek in a data set without an index.
        has_index = not isinstance(loader.dataset, torch.utils.data.IterableDataset)
        cut = cut_loader(loader, self._companion, self._place) if has_index else None
        if cut is None:
            self._companion.say(
                f"the train loader ({type(loader.dataset).__name__}) cannot start in mid-epoch: a "
                "resume reads the epoch again, skips trained batches, and is exact only with the "
                "same number of processes"
            )
            return prepare(loader)
        self._updates_in_epoch = max(1, -(-len(cut) // trainer.args.gradient_accumulation_steps))
        self._companion.agree_on_facts(accumulation=trainer.args.gradient_accumulation_steps)
        return cut

    def _place(self) -> tuple[int, int]:
        """The epoch, and 0: the Trainer itself leaves out the epoch's trained batches."""
        return self._trainer.state.global_step // self._updates_in_epoch, 0

    # -- the Trainer's hooks -------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Loads the sums since the last row of the log; the Trainer has loaded all else."""
        trainer, checkpoint = self._trainer, self._companion.checkpoint
        if checkpoint is not None and (checkpoint.path / SUMS_FILE).exists():
            sums = json.loads((checkpoint.path / SUMS_FILE).read_text())
            losses = sums.pop("loss")
            rank = self._companion.rank
            same = len(losses) == args.world_size
            trainer._tr_loss += losses[rank] if same else sum(losses) / len(losses)
            vars(trainer).update(sums)
        self._companion.begin(state.global_step, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last step, its rows and its evaluation are done: the time to save."""
        self._companion.before_batch(state.global_step)
        seed_generators(self._companion.seed, state.global_step, self._companion.rank)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notes progress."""
        trainer = self._trainer
        since = max(1, state.global_step - trainer._globalstep_last_logged)
        self._companion.after_batch(
            state.global_step,
            lambda: float(trainer._tr_loss) / since,
            batches=args.gradient_accumulation_steps,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commits the last state."""
        self._companion.finish(state.global_step)

    # -- checkpoints ---------------------------------------------------------------------------

    def _is_stopped_early(self) -> bool:
        trainer = self._trainer
        is_short = trainer.state.global_step < trainer.state.max_steps
        return bool(trainer.control.should_training_stop and is_short)

    def _write(self, folder: Path) -> None:
        """Writes what the Trainer itself would, without its folders and their removal."""
        trainer = self._trainer
        # First what all ranks take part in, before a full disk can fail one of them.
        trainer.store_flos()
        losses = self._companion.saver.ranks.gather(float(trainer._tr_loss))
        trainer.save_model(str(folder), _internal_call=True)
        trainer._save_optimizer_and_scheduler(str(folder))
        trainer._save_scaler(str(folder))
        if not trainer.args.should_save:
            return
        for callback in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(callback, ExportableState):
                trainer.state.stateful_callbacks[type(callback).__name__] = callback.state()
        trainer.state.save_to_json(str(folder / TRAINER_STATE_NAME))
        names = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
        sums = {"loss": losses, **{name: getattr(trainer, name) for name in names}}
        (folder / SUMS_FILE).write_text(json.dumps(sums))
