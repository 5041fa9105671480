"""What happens between two steps: a checkpoint that is due, an answer to a node's request, a check
for weights that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from fabric_train.checkpointing.commit import SaveResult
from fabric_train.checkpointing.saver import Saver
from fabric_train.checkpointing.state import has_finite_weights
from fabric_train.errors import DivergedError
from fabric_train.loop.ledger import Ledger, Loaded, Saved, SaveFailed, StopAgreed
from fabric_train.loop.preemption import Preemption, Wish
from fabric_train.profiling import Profiler
from fabric_train.ranks import Agreement
from fabric_train.worker_env import WorkerEnv

AGREE_EVERY_S = 0.25
"""About how often ranks with short steps agree on stop requests and due checkpoints."""

Save = Callable[[bool], SaveResult | None]
"""Saves the present state, blocking if given True, and returns the result of an ended save."""


class StepWatch:
    """Lets all ranks save at the same step; all must call the same methods in the same order."""

    def __init__(self, env: WorkerEnv, saver: Saver, ledger: Ledger) -> None:
        self._saver, self._ledger = saver, ledger
        speaks = env.world is None or env.world.local_rank == 0
        self._preemption = Preemption(env.node_dir if speaks else None)
        self.profiler = Profiler(env, speaks=speaks)
        self._agreement = Agreement(3, pause_s=AGREE_EVERY_S)

    def begin(self, step: int) -> None:
        """Continues from ``step``, and tells the agent that requests will be answered."""
        self._preemption.announce()
        self._ledger.write(Loaded(step=step))
        self.profiler.after_step(step)

    def after_step(self, step: int, save: Save) -> None:
        """Commits when all ranks agree that a checkpoint is due or that a node asks for one.

        Raises PreemptedError after a commit on request, FencedError if a later group has begun.
        """
        wish, due, traced = self._agreement.settle()
        if wish:
            self._answer(Wish(wish), step, save)
        elif due or self._saver.is_step_due(step):
            self.save(save)
        else:
            self._report_save(self._saver.poll())
        self.profiler.after_step(step, traced)
        due = int(self._saver.is_time_due())
        self._agreement.propose((self._preemption.look(), due, self.profiler.look()))

    def save(self, save: Save, *, block: bool = False) -> SaveResult | None:
        """Saves, and writes into the ledger what that cost; gives what ``save`` returns."""
        result = save(block)
        self._ledger.on_stall(self._saver.blocked_s)
        self._report_save(result)
        return result

    def finish(self, save: Save) -> Path | None:
        """Commits the final state and gives its path; blocks.

        Raises OSError, on all ranks, if it could not be written: no later save makes up for it.
        """
        self._agreement.settle()
        self.profiler.stop()
        result = self.save(save, block=True)
        settled = self._saver.settle()
        error = "" if result is None or result.path else result.error
        if error := self._saver.ranks.from_rank_zero(lambda: error):
            raise OSError(f"the last checkpoint was not written: {error}")
        self._saver.close()
        return settled[1] if settled else None

    def check_weights(self, model: nn.Module, step: int, remedy: str = "") -> None:
        """Raises DivergedError, on all ranks, if a weight of any rank is not finite; blocks."""
        if not self._agreement.hold_on_all(has_finite_weights(model)):
            raise DivergedError(
                f"a weight is not a finite number after step {step}, so no checkpoint of it was "
                f"written.{remedy}"
            )

    def _answer(self, wish: Wish, step: int, save: Save) -> None:
        self._ledger.write(StopAgreed(step=step, reason=wish.name.lower()))
        self.save(save, block=True)
        settled = self._saver.settle()
        committed = settled is not None and settled[0] == step
        self._preemption.answer(step, settled[1] if settled and committed else None)
        if wish is Wish.STOP:
            self._preemption.wait_for_sigterm(self._saver.check_world)

    def _report_save(self, result: SaveResult | None) -> None:
        if result is None:
            return
        if result.path is None:
            self._ledger.write(SaveFailed(step=result.step, error=result.error))
            return
        self._ledger.write(
            Saved(
                step=result.step,
                blocked_s=round(result.blocked_s, 6),
                write_s=round(result.write_s, 6),
                bytes=result.total_bytes,
            )
        )
