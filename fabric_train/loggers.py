"""The loggers that ``Log`` writes to: CSV, TensorBoard, W&B (offline) and MLflow (files).

Each logger reads back what its files hold, so that a start knows where the last one ended.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from fabric_train.checkpointing.durable import write_file
from fabric_train.errors import InputError

Row = tuple[int, dict[str, float]]
"""A step, and its values by name."""


FINISH_LIMIT_S = 30.0
"""How long W&B may take to write its file."""
MLFLOW_MOST = 1000
"""Values that one call to MLflow may take."""


class Logger:
    """Keeps rows in a folder of its own. A custom logger implements ``read`` and ``write``."""

    name: ClassVar[str]
    package: ClassVar[tuple[str, str]] = ("", "")
    """The module that it imports, and what to install for it."""
    every_s: ClassVar[float] = 0.0
    """Least seconds between two writes of rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> dict[str, int]:
        """The last step of each value that the files hold."""
        raise NotImplementedError

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows in the order of steps; returns once the files hold them."""
        raise NotImplementedError


class CsvLogger(Logger):
    """One table, ``metrics.csv``: a row for each step, a column for each name."""

    name = "csv"

    @property
    def _path(self) -> Path:
        return self.folder / "metrics.csv"

    def _read_rows(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return list(csv.DictReader(file))

    def read(self) -> dict[str, int]:
        return {
            name: int(row["step"])
            for row in self._read_rows()
            for name, value in row.items()
            if value and name != "step"
        }

    def write(self, rows: Sequence[Row]) -> None:
        # The whole file, replaced at once: a new column changes its first line.
        table = {int(row["step"]): row for row in self._read_rows()}
        for step, values in rows:
            table.setdefault(step, {"step": step}).update(values)
        columns = dict.fromkeys(name for row in table.values() for name in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self._path, lambda file: file.write(text.getvalue().encode()))


class TensorBoardLogger(Logger):
    """Event files, a new one at each start."""

    name = "tensorboard"
    package = ("tensorboard", "tensorboard")
    _writer: Any = None

    def read(self) -> dict[str, int]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        if not self.folder.is_dir():
            return {}
        events = EventAccumulator(str(self.folder), size_guidance={"scalars": 1})
        events.Reload()
        return {name: events.Scalars(name)[-1].step for name in events.Tags()["scalars"]}

    def write(self, rows: Sequence[Row]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = self._writer or SummaryWriter(str(self.folder))
        for step, values in rows:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()


class WandbLogger(Logger):
    """An offline run in parts, which ``wandb sync`` joins by the run's id.

    An open run holds its last rows in memory, so each write makes a part and closes it.
    """

    name = "wandb"
    package = ("wandb", "'wandb>=0.25,<0.29'")
    every_s = 600.0
    """Writing a part takes seconds, beside the training."""

    def _parts(self) -> list[Path]:
        parts = self.folder.glob("wandb/offline-run-*/run-*.wandb")
        return sorted(parts, key=lambda path: (path.parent.name, path.stat().st_mtime))

    def read(self) -> dict[str, int]:
        return {
            name: step
            for part in self._parts()
            for step, values in read_wandb(part)
            for name in values
        }

    def write(self, rows: Sequence[Row]) -> None:
        import wandb

        parts = self._parts()
        id = parts[-1].stem.removeprefix("run-") if parts else uuid.uuid4().hex[:8]
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True
        )
        # A new run: the process's default run may belong to the script.
        run = wandb.init(
            project="fabric_train",
            id=id,
            mode="offline",
            dir=self.folder,
            settings=settings,
            reinit="create_new",
        )
        for step, values in rows:
            run.log(values, step=step)
        run.finish()
        # wandb's own process writes the file, a moment after ``finish`` has returned.
        end = time.monotonic() + FINISH_LIMIT_S
        while self.read_last_step() < rows[-1][0]:
            if time.monotonic() > end:
                raise TimeoutError(f"wandb has not written its file for {FINISH_LIMIT_S:.0f} s")
            time.sleep(0.05)

    def read_last_step(self) -> int:
        """The last step of the newest part."""
        rows = read_wandb(self._parts()[-1]) if self._parts() else []
        return rows[-1][0] if rows else -1


def read_wandb(path: Path) -> list[Row]:
    """The rows of a ``.wandb`` file, up to where a killed writer left it."""
    import json

    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    messages: Any = wandb_internal_pb2  # protobuf makes its types at import
    rows: list[Row] = []
    store: Any = DataStore()
    try:
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = messages.Record()
            record.ParseFromString(data)
            items = {
                item.key or "/".join(item.nested_key): item.value_json
                for item in record.history.item
            }
            if "_step" in items:
                values = {n: json.loads(v) for n, v in items.items() if not n.startswith("_")}
                rows.append((int(items["_step"]), values))
    except Exception:  # wandb raises AssertionError and Exception, protobuf its own
        return rows
    return rows


class MlflowLogger(Logger):
    """A run in MLflow's files, ``mlflow ui --backend-store-uri FOLDER``."""

    name = "mlflow"
    package = ("mlflow", "mlflow-skinny")

    def _open(self) -> tuple[Any, str]:
        # MLflow writes files only if asked to: they are no longer its default.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        client = MlflowClient(self.folder.absolute().as_uri())
        existing = client.get_experiment_by_name("fabric_train")
        experiment = (
            existing.experiment_id if existing else client.create_experiment("fabric_train")
        )
        runs = client.search_runs([experiment]) or [client.create_run(experiment)]
        return client, runs[0].info.run_id

    def read(self) -> dict[str, int]:
        if not self.folder.is_dir():
            return {}
        client, run = self._open()
        names = client.get_run(run).data.metrics
        return {name: client.get_metric_history(run, name)[-1].step for name in names}

    def write(self, rows: Sequence[Row]) -> None:
        client, run = self._open()
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now_ms, step)
            for step, values in rows
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), MLFLOW_MOST):
            client.log_batch(run, metrics[first : first + MLFLOW_MOST])


LOGGERS: dict[str, type[Logger]] = {
    each.name: each for each in (CsvLogger, TensorBoardLogger, WandbLogger, MlflowLogger)
}


def open_loggers(names: str, folder: Path) -> list[Logger]:
    """The loggers of a comma-separated list, each in a folder of its name.

    Raises InputError for an unknown name, and for a logger that is not installed.
    """
    loggers = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        if name not in LOGGERS:
            raise InputError(f"--loggers: {name} is none of {', '.join(LOGGERS)}")
        module, package = LOGGERS[name].package
        if module and importlib.util.find_spec(module) is None:
            raise InputError(f"--loggers {name}: it is not installed", f"pip install {package}")
        loggers.append(LOGGERS[name](folder / name))
    return loggers
