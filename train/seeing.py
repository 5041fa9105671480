"""What the program tells its loggers, how often, and where storage and profiles go."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fabric_train.breakdown import Breakdown, read_communication
from fabric_train.checkpointing.saver import Saver
from fabric_train.log import Log
from fabric_train.loggers import open_loggers
from fabric_train.storage import LOGS_DIR, Storage
from train.build import Run
from train.config import TrainConfig, parse_steps
from train.progress import Meter

PROFILES_DIR = "profiles"


def open_log(config: TrainConfig, saver: Saver, say: Callable[[str], None]) -> None:
    """Opens loggers and storage for rank 0's saver; all ranks refuse what cannot be opened."""
    if saver.log.has_loggers:
        return
    loggers = open_loggers(config.loggers, saver.store.folder / LOGS_DIR)
    storage = Storage(config.storage, saver.store.folder, say) if config.storage else None
    if saver.ranks.leads:
        # With the rows that this rank has kept for the case that it becomes rank 0.
        saver.log = Log(loggers, saver.log.state(), say=say)
        saver.storage = storage
    elif loggers:
        saver.log = Log((), saver.log.state(), keeps=True)


def plan_profile(run: Run) -> None:
    """Plans to trace the steps that ``--profile`` names."""
    if run.config.profile:
        folder = run.env.run_dir or run.continuity.saver.store.folder
        run.continuity.profiler.plan(*parse_steps(run.config.profile), folder / PROFILES_DIR)


def is_logged(run: Run, step: int) -> bool:
    """Whether a row is logged after ``step``."""
    return bool(run.config.loggers) and step % run.config.log_every == 0


def begin_breakdown(run: Run) -> Breakdown | None:
    """Times the step that begins now, if a row is logged after it."""
    return Breakdown(run.fabric.device) if is_logged(run, run.state.step + 1) else None


def log_step(
    run: Run,
    loss: Tensor,
    meter: Meter,
    average: Callable[[Tensor], float],
    breakdown: Breakdown | None,
) -> None:
    """Logs a row for a timed step, which waits for the device; all ranks must call it."""
    if breakdown is None:
        return
    samples_per_s = meter.steps_per_s * run.schedule.batch_size
    mfu = run.utilization * samples_per_s
    values = {
        "loss": average(loss),
        "lr": run.state.optimizer.param_groups[0]["lr"],
        "samples_per_s": samples_per_s,
        **({"mfu": mfu} if mfu else {}),
        **breakdown.parts,
        **read_communication(run.strategy.model),
    }
    run.continuity.saver.log.add(run.state.step, values)


def log_epoch(run: Run, **values: float) -> None:
    """Adds an epoch's values to the row of its last step."""
    run.continuity.saver.log.add(run.state.step, values)
