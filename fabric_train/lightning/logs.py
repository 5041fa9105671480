"""Loggers that go on where the checkpoint was taken: the same file, no row twice, none missing.

A logger that writes files makes a new version at each start, or deletes the old one. So a
checkpoint holds a copy of a CSV file, and a resume puts it back. TensorBoard hides later rows.
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
    """Whether ``thing`` is an instance of a class with one of these names.

    Scripts import ``lightning.pytorch`` or ``pytorch_lightning``, whose classes are not the same.
    """
    return any(kind.__name__ in names for kind in type(thing).__mro__)


def describe_logs(trainer: Trainer) -> list[dict[str, Any]]:
    """What a checkpoint records of the loggers, as JSON types."""
    step = trainer.fit_loop.epoch_loop._batches_that_stepped
    return [
        {"kind": type(logger).__name__, "version": logger.version, "step": step}
        for logger in trainer.loggers
    ]


def copy_logs(trainer: Trainer, folder: Path) -> None:
    """Copies CSV files into a checkpoint, to be put back by a resume; rank 0 calls it."""
    loggers: list[Any] = trainer.loggers
    for index, logger in enumerate(loggers):
        if is_a(logger, "CSVLogger"):
            logger.save()
            path = Path(logger.log_dir) / METRICS_FILE
            if path.exists():
                shutil.copyfile(path, folder / COPY.format(index=index))


def continue_logs(trainer: Trainer, folder: Path, saved: Sequence[dict[str, Any]]) -> None:
    """Points the loggers at what they wrote before; all ranks call it, rank 0 writes.

    Changes nothing if the kinds of loggers have changed. Keeps a version that is a text.
    """
    kinds = [type(logger).__name__ for logger in trainer.loggers]
    if kinds != [each["kind"] for each in saved]:
        return
    loggers: list[Any] = trainer.loggers
    for index, (logger, state) in enumerate(zip(loggers, saved, strict=True)):
        if not is_a(logger, "CSVLogger", "TensorBoardLogger"):
            continue
        before = logger.log_dir
        # The logger has counted a number up. A person chose a text, so it stays.
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
    """Replaces the rows of the logger's file by those of the checkpoint."""
    logger._experiment = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it deletes the file, which is put back
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
    """Removes the folder of an unneeded version, if it holds at most one event file."""
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        if all(name.startswith("events.out.tfevents") for name in names) and len(names) <= 1:
            shutil.rmtree(folder)
