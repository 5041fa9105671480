"""Loggers that go on where the checkpoint was taken: the same file, no row twice, none missing.

A logger that writes files makes a new version at each start, or deletes the one before. A
checkpoint holds a copy of a CSV file, which is put back. TensorBoard hides what came later.
"""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

METRICS_FILE = "metrics.csv"
COPY = "log-{index}.csv"


def is_a(thing: object, *names: str) -> bool:
    """Whether the thing is of a class of Lightning's with one of these names.

    Scripts import them from ``lightning.pytorch`` or ``pytorch_lightning``: one code, two packages.
    """
    return any(kind.__name__ in names for kind in type(thing).__mro__)


def describe_logs(trainer: Trainer) -> list[dict[str, Any]]:
    """What a checkpoint says of the loggers; JSON."""
    step = trainer.fit_loop.epoch_loop._batches_that_stepped
    return [
        {"kind": type(logger).__name__, "version": logger.version, "step": step}
        for logger in trainer.loggers
    ]


def copy_logs(trainer: Trainer, folder: Path) -> None:
    """Copies rows that may have to be put back; rank 0 calls it."""
    loggers: list[Any] = trainer.loggers
    for index, logger in enumerate(loggers):
        if is_a(logger, "CSVLogger"):
            logger.save()
            path = Path(logger.log_dir) / METRICS_FILE
            if path.exists():
                shutil.copyfile(path, folder / COPY.format(index=index))


def continue_logs(trainer: Trainer, folder: Path, saved: Sequence[dict[str, Any]]) -> None:
    """Points the loggers at what they wrote before; all ranks call it, rank 0 writes.

    Leaves one alone whose version is a text, or of which there are others than before.
    """
    kinds = [type(logger).__name__ for logger in trainer.loggers]
    if kinds != [each["kind"] for each in saved]:
        return
    loggers: list[Any] = trainer.loggers
    for index, (logger, state) in enumerate(zip(loggers, saved, strict=True)):
        if not is_a(logger, "CSVLogger", "TensorBoardLogger"):
            continue
        before = logger.log_dir
        # A number was counted up. A text is a person's, who keeps or changes it.
        if isinstance(logger.version, int):
            logger._version = state["version"]
        if not trainer.is_global_zero:
            continue
        if is_a(logger, "CSVLogger"):
            continue_csv(logger, folder / COPY.format(index=index))
        else:
            continue_tensorboard(logger, state["step"])
        if logger.log_dir != before:
            remove_new_folder(Path(before))


def continue_csv(logger: CSVLogger, rows: Path) -> None:
    """Writes the rows of the checkpoint in the place of those that are there."""
    logger._experiment = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it deletes the file, which is put back
        writer = logger.experiment
    path = Path(writer.metrics_file_path)
    path.unlink(missing_ok=True)
    if rows.exists():
        shutil.copyfile(rows, path)
        with path.open(newline="") as file:
            writer.metrics_keys = next(csv.reader(file), [])


def continue_tensorboard(logger: TensorBoardLogger, step: int) -> None:
    """A new file beside the old ones, which hides their rows from ``step`` on."""
    if logger._experiment is not None:
        logger._experiment.close()
        logger._experiment = None
    logger._kwargs["purge_step"] = step


def remove_new_folder(folder: Path) -> None:
    """Removes what a logger made at this start for a version that is not needed."""
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        if all(name.startswith("events.out.tfevents") for name in names) and len(names) <= 1:
            shutil.rmtree(folder)
