"""Stands beside a Trainer that has a loop of its own: checkpoints, stopping, the ledger, its
loader.

What the callbacks for Lightning's, Hugging Face's and other Trainers have in common. A loop with
accelerate uses it directly: ``examples/accelerate_loop.py``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from fabric_train.checkpointing.checkpoint import Checkpoint
from fabric_train.checkpointing.commit import SaveResult
from fabric_train.checkpointing.durable import sync_folder
from fabric_train.checkpointing.lineage import FencedError
from fabric_train.checkpointing.manifest import find_differences, refuse_another
from fabric_train.checkpointing.retention import KEPT, Interval, Keep
from fabric_train.checkpointing.saver import Saver
from fabric_train.errors import InputError
from fabric_train.loop.ledger import Planned, TrainEnded, TrainStarted, open_ledger
from fabric_train.loop.preemption import PreemptedError, exit_on_sigterm, leave
from fabric_train.loop.watch import StepWatch
from fabric_train.sampling.loading import EpochCut, Place, change_loader, find_order, find_source
from fabric_train.worker_env import WORLD_VARIABLES, WorkerEnv, parse_worker_env

Write = Callable[[Path], object]
"""Puts a Trainer's state into a folder; called on all ranks."""
hear_sigterm = functools.cache(exit_on_sigterm)
"""Runs once, however many trainings a script has."""
Describe = Callable[[], Mapping[str, Any]]
"""Returns what else the manifest says of that state; JSON."""


class Companion:
    """The safety of one training that a Trainer runs; all ranks call the same methods in order.

    Make it when the script begins, before there is a process group. ``folder`` None stands for
    CHECKPOINT_DIR, which the launcher sets. Without an interval, Young's formula chooses it.
    """

    opened: ClassVar[set[Path]] = set()
    """The checkpoint folders that this process has opened."""

    def __init__(
        self,
        folder: str | Path | None = None,
        every_n_steps: int | None = None,
        every_s: float | None = None,
        keep_last: int = KEPT,
        keep_every_n_steps: int | None = None,
    ) -> None:
        self.env = env = parse_env()
        self._interval = Interval(steps=every_n_steps, seconds=every_s)
        self._keep = Keep(last=keep_last, every_steps=keep_every_n_steps)
        folder = folder or env.checkpoint_dir
        self.folder = Path(folder) if folder else None
        self.ledger = open_ledger(env)
        self.ledger.write(TrainStarted(world_size=env.world_size, generation=env.generation))
        if env.node_dir is not None:
            hear_sigterm(env.node_dir)
        self.seed = 0
        self.facts: dict[str, Any] = {}
        """What a start that resumes must have in common, as far as it is known."""
        self.global_batch_size = 0
        """Samples of all ranks; 0 if the Trainer's loader is not cut."""
        self.step = 0
        self.checkpoint: Checkpoint | None = None
        self._read_loss: Callable[[], float] = lambda: math.nan

    def may_act(self, find_obstacle: Callable[[], str | None]) -> bool:
        """Whether there is a folder for checkpoints and no obstacle; prints an obstacle."""
        if self.folder is None:
            return False
        obstacle = find_obstacle()
        if self.folder in self.opened:
            obstacle = f"a second training of one script with the checkpoints in {self.folder}"
        if obstacle:
            self.say(
                f"{obstacle}: no checkpoints are written, not even before a stop, and a resume is "
                "not exact"
            )
        return not obstacle

    @property
    def rank(self) -> int:
        """This process's rank; a Trainer may have started the process by itself."""
        if dist.is_initialized():
            return dist.get_rank()
        return self.env.world.rank if self.env.world else 0

    def say(self, text: str) -> None:
        """Prints on rank 0."""
        if self.rank == 0:
            sys.stdout.write(f"fabric_train: {text}\n")
            sys.stdout.flush()

    def open(
        self,
        model: nn.Module,
        write: Write,
        describe: Describe,
        *,
        kind: str,
        seed: int,
        world_size: int,
        join: str = "Accelerator(cpu=not torch.cuda.is_available())",
    ) -> Checkpoint | None:
        """Takes the folder over, and gives the newest checkpoint; the process group must be there.

        ``kind``: which Trainer and model it is. ``world_size``: how many processes train together.
        ``join``: what a script types so that all do. Blocks. Ends the process for bad input.
        """
        assert self.folder is not None
        started = self.env.world.world_size if self.env.world else world_size
        if world_size != started:
            # And a resume would give all of them rank 0's weights.
            with ending():
                raise InputError(
                    f"{started} processes were started, but train in groups of {world_size}, each "
                    "with its own weights",
                    join,
                )
        self.opened.add(self.folder)
        self._write, self._describe = write, describe
        self.saver = Saver(
            self.folder,
            config={"kind": kind},
            keep=self._keep,
            interval=self._interval,
            say=self.say,
        )
        self.watch = StepWatch(self.env, self.saver, self.ledger)
        self._model = model
        self._shapes = {name: list(weight.shape) for name, weight in model.named_parameters()}
        with ending():
            self.checkpoint = self.saver.begin(self._shapes, shared=True)
        if self.checkpoint:
            self.say(f"goes on after step {self.checkpoint.manifest.step}: {self.checkpoint.path}")
        # The first start's seed: the launcher's restart may not know a seed that was drawn.
        self.seed = self.saver.ranks.from_rank_zero(lambda: self.state.get("seed", seed))
        return self.checkpoint

    @property
    def state(self) -> Mapping[str, Any]:
        """What the found checkpoint's manifest says of the training; empty without one."""
        return self.checkpoint.manifest.trainer if self.checkpoint else {}

    def agree_on_facts(self, **facts: Any) -> None:
        """Ends the process, as for bad input, if the checkpoint was made with other facts."""
        self.facts |= facts
        saved = {
            name: self.state.get("facts", {}).get(name, value) for name, value in facts.items()
        }
        differences = find_differences(saved, facts)
        if differences and self.checkpoint:
            with ending():
                raise refuse_another(self.checkpoint.path, differences, "checkpoint_dir")

    def begin(self, step: int, until: float = math.inf) -> None:
        """Begins at ``step``; ``until`` is the last step, infinite if there is none."""
        self.step = step
        self.watch.begin(step)
        if math.isfinite(until):
            self.ledger.write(Planned(step=step, until=int(until)))

    def before_batch(self, step: int) -> None:
        """Saves and stops as the ranks agreed, after ``step`` optimizer steps."""
        if step == self.step:  # within an accumulation, whose gradients no file holds
            return
        self.step = step
        with ending():
            self.watch.after_step(step, self._save)

    def after_batch(self, step: int, read_loss: Callable[[], float], *, batches: int = 1) -> None:
        """Notes that ``batches`` more are trained; reads the loss now and then."""
        self._read_loss = read_loss
        self.ledger.on_step(step, self.global_batch_size * batches, read_loss)

    def finish(self, step: int) -> None:
        """Commits the last state. Raises OSError if it could not be written."""
        self.step = step
        self.ledger.on_trained(step, self._read_loss())
        with ending():
            self.watch.finish(self._save)

    def close(self) -> None:
        """Notes that the training has ended well."""
        self.ledger.write(TrainEnded(step=self.step))

    def _save(self, _block: bool) -> SaveResult | None:
        self.watch.check_weights(self._model, self.step)

        def write(folder: Path) -> list[str]:
            # All ranks have written, or all raise the error of one.
            self.saver.ranks.gather_done(lambda: self._write(folder))
            return sync_files(folder) if self.saver.ranks.leads else []

        state = {
            **self._describe(),
            "seed": self.seed,
            "facts": self.facts,
            "global_batch_size": self.global_batch_size,
        }
        return self.saver.save_files(self.step, write, tensors=self._shapes, trainer=state)


def sync_files(folder: Path) -> list[str]:
    """Waits until all files below ``folder`` are on the disk, and gives their names."""
    paths = sorted(folder.rglob("*"))
    for path in paths:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    return [str(path.relative_to(folder)) for path in paths if path.is_file()]


def parse_env() -> WorkerEnv:
    """This process's environment; ends the process if variables contradict each other.

    A process that a Trainer has started by itself has some of torchrun's variables, but no RANK.
    """
    environ = dict(os.environ)
    if "RANK" not in environ:
        for name in WORLD_VARIABLES:
            environ.pop(name, None)
    with ending():
        return parse_worker_env(environ)
    raise AssertionError("ending() never swallows an error")


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Ends the process without a stack trace for bad input (2) and once it is preempted (143)."""
    try:
        yield
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except (PreemptedError, FencedError) as error:
        leave(str(error))


def plan_cut(loader: DataLoader[Any], size: int, companion: Companion) -> EpochCut:
    """How this training cuts an epoch of a loader; ends the process if the data has changed.

    The global batch is that of the first start, whatever the world is now.
    """
    world_size = companion.saver.ranks.size
    companion.agree_on_facts(
        samples=size, batch_size=loader.batch_size, drop_last=bool(loader.drop_last)
    )
    total = companion.state.get("global_batch_size") or (loader.batch_size or 1) * world_size
    with ending():
        cut = EpochCut(
            size=size,
            global_batch_size=total,
            rank=companion.rank,
            world_size=world_size,
            drop_last=bool(loader.drop_last),
            seed=companion.seed,
        )
    companion.global_batch_size = total
    if 0 < cut.tail < world_size:
        companion.say(
            f"the last batch of an epoch has too few samples ({cut.tail}) for {world_size} "
            "processes, so some go to several; drop_last=True skips that batch"
        )
    return cut


def cut_loader(loader: Any, companion: Companion, place: Place) -> DataLoader[Any] | None:
    """The same loader with this rank's share of each global batch; None if it reads another way."""
    order, source = find_order(loader), find_source(loader)
    if order is None and source is None:
        return None
    cut = plan_cut(loader, len(source if order is None else order), companion)  # type: ignore[arg-type]
    return change_loader(loader, order, cut, place)
