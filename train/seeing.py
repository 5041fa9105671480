"""What the program tells its loggers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fabric_train.log import Log
from fabric_train.loggers import open_loggers
from fabric_train.saver import Saver
from fabric_train.storage import LOGS_DIR, Storage
from train.build import Run
from train.config import TrainConfig, parse_steps
from train.progress import Meter

PROFILES_DIR = "profiles"


def open_log(config: TrainConfig, saver: Saver, say: Callable[[str], None]) -> None:
    """Gives the saver what the options ask for. All ranks refuse what cannot be opened."""
    loggers = open_loggers(config.loggers, saver.store.folder / LOGS_DIR)
    storage = Storage(config.storage, saver.store.folder, say) if config.storage else None
    if saver.ranks.leads:
        saver.log, saver.storage = Log(loggers, say=say), storage


def plan_profile(run: Run) -> None:
    """Has the steps traced that ``--profile`` names."""
    if run.config.profile:
        folder = run.env.run_dir or run.continuity.saver.store.folder
        run.continuity.profiler.plan(*parse_steps(run.config.profile), folder / PROFILES_DIR)


def log_step(run: Run, loss: Tensor, meter: Meter, average: Callable[[Tensor], float]) -> None:
    """A row in every ``log_every`` steps; all ranks must call it. Waits for the device then."""
    step = run.state.step
    if not run.config.loggers or step % run.config.log_every:
        return
    values = {
        "loss": average(loss),
        "lr": run.state.optimizer.param_groups[0]["lr"],
        "samples_per_s": meter.steps_per_s * run.schedule.batch_size,
    }
    run.continuity.saver.log.add(step, values)


def log_epoch(run: Run, **values: float) -> None:
    """Values of an epoch, in the row of its last step."""
    run.continuity.saver.log.add(run.state.step, values)
