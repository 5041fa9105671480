"""Checkpoints, stop requests and ledger events of one loop, behind four calls; refuses to save a
state that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fabric_train.checkpointing.commit import SaveResult
from fabric_train.checkpointing.saver import Saver
from fabric_train.checkpointing.state import TrainState
from fabric_train.errors import DivergedError
from fabric_train.loop.ledger import Ledger
from fabric_train.loop.preemption import finish_before_exit
from fabric_train.loop.watch import StepWatch
from fabric_train.worker_env import WorkerEnv

if TYPE_CHECKING:
    from fabric_train.strategies.strategy import Strategy

CLOSE_LIMIT_S = 10.0
"""Seconds that a save in flight gets when the training ends with an error."""

REMEDY = " Lower the learning rate (--lr) or warm up longer (--warmup_steps)"


class Continuity:
    """Saves, resumes and stops one training; all ranks call the same methods in the same order.

    With ``each_epoch`` a checkpoint follows each epoch, whatever the saver's interval.
    ``strategy`` saves its own memory in checkpoints. ``refresh`` arguments bring the state's
    ``epoch_loss`` up to date over all ranks, and may block.
    """

    def __init__(
        self,
        env: WorkerEnv,
        state: TrainState,
        saver: Saver,
        ledger: Ledger,
        *,
        each_epoch: bool = True,
        strategy: Strategy | None = None,
    ) -> None:
        self.saver, self._strategy = saver, strategy
        self._state, self._each_epoch = state, each_epoch
        self._watch = StepWatch(env, saver, ledger)
        self.profiler = self._watch.profiler
        finish_before_exit(self.saver.join)

    def resume(self) -> Path | None:
        """Loads the newest checkpoint, and tells the agent that stop requests will be answered."""
        self._load(only_read=False)
        return self.go_on()

    def go_on(self) -> Path | None:
        """Instead of ``resume``, where the state came from another rank or is here already."""
        self._watch.begin(self._state.step)
        return self.saver.newest

    def load(self) -> Path | None:
        """Loads the newest checkpoint for a look at the model; nothing is written."""
        self._load(only_read=True)
        return self.saver.newest

    def after_step(self, refresh: Callable[[], object]) -> None:
        """Commits when all ranks agree that a checkpoint is due or that a node asks for one.

        Raises PreemptedError after a commit on request, FencedError if a later group has begun.
        """

        def save(block: bool) -> SaveResult | None:
            refresh()
            return self._save(block)

        self._watch.after_step(self._state.step, save)

    def on_epoch_end(self) -> None:
        """Commits with the epoch's loss as the score, if ``each_epoch``."""
        if self._each_epoch:
            self.save(score=self._state.train_loss)

    def save(self, *, score: float | None = None, block: bool = False) -> None:
        """Begins to save the present state.

        Raises DivergedError, on all ranks, if its loss or a weight of any rank is not finite: a
        start that continued from this state would fail in the same way.
        """
        self._watch.save(lambda block: self._save(block, score), block=block)

    def finish(self) -> Path | None:
        """Commits the final state and gives its path; blocks. All ranks must call it.

        Raises OSError, on all ranks, if it could not be written.
        """
        return self._watch.finish(lambda block: self._save(block, self._state.train_loss))

    def close(self) -> None:
        """Waits up to CLOSE_LIMIT_S for a save in flight; never raises."""
        self.saver.join(CLOSE_LIMIT_S)

    def _load(self, *, only_read: bool) -> None:
        state = self._state
        manifest = self.saver.resume(
            state.model, state.optimizer, self._strategy, only_read=only_read
        )
        if manifest:
            state.step = manifest.step
            state.load_json(manifest.trainer)

    def _save(self, block: bool, score: float | None = None) -> SaveResult | None:
        state = self._state
        check_finite(state.epoch_loss, state.step)
        # The last loss was computed before the last step, which may have spoilt the weights.
        self._watch.check_weights(state.model, state.step, REMEDY)
        return self.saver.save(
            state.step,
            state.model,
            state.optimizer,
            trainer={**state.to_json(), "strategy": self._strategy and self._strategy.name},
            score=score,
            block=block,
            strategy=self._strategy,
        )


def check_finite(loss: float, step: int) -> float:
    """The loss; raises DivergedError if it is not finite."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the training loss is {loss} after step {step}, so no checkpoint of it was written."
            + REMEDY
        )
    return loss
