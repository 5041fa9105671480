"""What lets a training go on elsewhere: its checkpoints, its part in stopping, its ledger."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from fabric_train.agreement import Agreement
from train.config import TrainConfig
from fabric_train.errors import DivergedError
from fabric_train.ledger import Ledger
from fabric_train.preemption import Preemption, Wish, finish_before_exit
from fabric_train.retention import Interval, Keep
from fabric_train.saver import Saver, SaveResult
from fabric_train.state import TrainState
from fabric_train.worker_env import CHECKPOINTS_DIR, WorkerEnv

CLOSE_LIMIT_S = 10.0
"""What a commit in flight gets when the training ends by an error."""


class Continuity:
    """One start's safety net; every rank makes one and calls the same methods in the same order.

    ``refresh`` arguments bring the state's ``epoch_loss`` up to date, over all ranks, and may wait.
    """

    def __init__(
        self, config: TrainConfig, env: WorkerEnv, state: TrainState, saver: Saver, ledger: Ledger
    ) -> None:
        self.saver = saver
        self._config, self._state, self._ledger = config, state, ledger
        speaks = env.world is None or env.world.local_rank == 0
        self._preemption = Preemption(env.node_dir if speaks else None)
        self._agreement = Agreement(2)
        finish_before_exit(self.saver.join)

    def resume(self) -> Path | None:
        """Continues from the newest checkpoint, and tells the agent that it may ask from now on."""
        state = self._state
        found = self.saver.resume(state.model, state.optimizer)
        if found:
            state.step, state.sample = found.step, found.trainer["sample"]
            state.train_loss = _number(found.trainer["train_loss"])
            state.epoch_loss = found.trainer["epoch_loss"]
            state.epoch_steps = found.trainer["epoch_steps"]
        self._preemption.announce()
        self._ledger.write("loaded", step=state.step)
        return self.saver.newest

    def after_step(self, refresh: Callable[[], object]) -> None:
        """Commits where all ranks agree that it is time, or that a node asks for it.

        Raises PreemptedError after a commit on request, FencedError where a later group has begun.
        """
        wish, due = self._agreement.settle()
        if wish:
            self._answer(Wish(wish), refresh)
        elif due or self.saver.is_step_due(self._state.step):
            refresh()
            self.save()
        else:
            self._tell(self.saver.poll())
        self._agreement.propose((self._preemption.look(), int(self.saver.is_time_due())))

    def on_epoch_end(self) -> None:
        """Commits, with the epoch's loss as its score, where no interval says otherwise."""
        if plan_interval(self._config).is_chosen or self._config.keep_best:
            self.save(score=self._state.train_loss)

    def save(self, *, score: float | None = None, block: bool = False) -> None:
        """Begins a commit of the present state; raises DivergedError before one of no use."""
        state = self._state
        check_finite(state.epoch_loss, state.step)
        result = self.saver.save(
            state.step,
            state.model,
            state.optimizer,
            trainer={
                "train_loss": state.train_loss if math.isfinite(state.train_loss) else None,
                "sample": state.sample,
                "epoch_loss": state.epoch_loss,
                "epoch_steps": state.epoch_steps,
            },
            score=score,
            block=block,
        )
        self._ledger.on_stall(self.saver.blocked_s)
        self._tell(result)

    def finish(self) -> Path | None:
        """The last commit, waited for; where it lies. All ranks must call it."""
        self._agreement.settle()
        self.save(score=self._state.train_loss, block=True)
        settled = self.saver.settle()
        return settled[1] if settled else None

    def close(self) -> None:
        """Lets a commit in flight come to its end, a while; never raises."""
        self.saver.join(CLOSE_LIMIT_S)

    def _answer(self, wish: Wish, refresh: Callable[[], object]) -> None:
        step = self._state.step
        self._ledger.write("stop-agreed", step=step, reason=wish.name.lower())
        refresh()
        self.save(block=True)
        settled = self.saver.settle()
        committed = settled is not None and settled[0] == step
        self._preemption.answer(step, settled[1] if settled and committed else None)
        if wish is Wish.STOP:
            self._preemption.wait_for_sigterm()

    def _tell(self, result: SaveResult | None) -> None:
        if result is None:
            return
        if result.path is None:
            self._ledger.write("save-failed", step=result.step, error=result.error)
            return
        self._ledger.write(
            "saved",
            step=result.step,
            blocked_s=round(result.blocked_s, 6),
            write_s=round(result.write_s, 6),
            bytes=result.total_bytes,
        )


def open_saver(config: TrainConfig, env: WorkerEnv, say: Callable[[str], None]) -> Saver:
    """The saver that the options ask for; all ranks must call it."""
    folder = choose_checkpoint_dir(config, env)
    # A number of another folder's fence would mean nothing in this one.
    fenced_here = folder == env.checkpoint_dir
    return Saver(
        folder,
        keep=Keep(
            last=config.keep_checkpoints,
            best=config.keep_best,
            every_steps=config.keep_every_steps,
        ),
        interval=plan_interval(config),
        generation=env.generation if fenced_here else None,
        asynchronous=config.checkpoint_async,
        say=say,
    )


def plan_interval(config: TrainConfig) -> Interval:
    """How often checkpoints are written, by the options."""
    return Interval(
        steps=config.checkpoint_every_steps,
        seconds=config.checkpoint_every_s,
        mtbf_s=config.mtbf_s,
    )


def check_finite(loss: float, step: int) -> float:
    """The loss; raises DivergedError before such a state replaces a good checkpoint."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the training loss is {loss} after step {step}; no checkpoint was written of it. "
            "A lower --lr or a longer --warmup_steps may help"
        )
    return loss


def choose_checkpoint_dir(config: TrainConfig, env: WorkerEnv) -> Path:
    """The folder for checkpoints, by the order that the option's description gives."""
    named = config.checkpoint_dir or env.checkpoint_dir
    if named:
        return named
    if env.run_dir:
        return env.run_dir / CHECKPOINTS_DIR
    # A fixed folder would make the second `python -m train` on a laptop find the first's work.
    return Path("runs/train") / datetime.now().strftime("%Y%m%d-%H%M%S") / CHECKPOINTS_DIR


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
