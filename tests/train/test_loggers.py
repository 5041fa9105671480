"""What four loggers hold after a training that was killed, went back, and went on in another world.

Each is read by its own reader.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import train.loop  # so that forks have it
from fabric_train.errors import InputError
from fabric_train.log import Log
from fabric_train.loggers import Logger, Row, WandbLogger, open_loggers

OPTIONS = ("--max_steps=30", "--log_every=1", "--checkpoint_every_steps=4", "--warmup_steps=3")


def read_csv(folder: Path) -> list[tuple[int, float]]:
    with (folder / "csv/metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]


def read_tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]


def read_wandb(folder: Path) -> list[tuple[int, float]]:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    rows, ids = [], set()
    for path in sorted((folder / "wandb/wandb").glob("offline-run-*/*.wandb")):
        ids.add(path.stem)
        store = DataStore()
        store.open_for_scan(str(path))
        while data := store.scan_data():
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = {"".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if "loss" in items:
                rows.append((int(items["_step"]), float(items["loss"])))
    assert len(ids) == 1, "one run"
    return rows


def read_mlflow(folder: Path) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("fabric_train")
    (run,) = client.search_runs([experiment.experiment_id])
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")]


READERS = {
    "csv": read_csv,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


def test_every_logger_has_each_step_once_after_a_kill_a_damaged_checkpoint_and_a_resize(
    processes, finish, wait_until, tmp_path, monkeypatch
):
    assert train.loop
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # for the test's own reader
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    program = ("-m", "train", *OPTIONS, f"--loggers={','.join(READERS)}", "--checkpoint_dir=c")
    monkeypatch.setattr(WandbLogger, "every_s", 0.0)  # also in forks: a part for each checkpoint
    code, _, err = finish(
        processes.fork("-m", "train", *OPTIONS, "--loggers=csv", "--checkpoint_dir=d")
    )
    assert code == 0, err
    undisturbed = read_csv(tmp_path / "d/logs")
    assert [step for step, _ in undisturbed] == list(range(1, 31))

    killed = processes.fork(*program)
    wait_until(lambda: (tmp_path / "c/logs/csv/metrics.csv").exists(), killed)
    killed.kill()
    newest = max((tmp_path / "c").glob("step-*"))
    (newest / "manifest.json").write_text("{")
    code, out, err = finish(processes.fork(*program, ranks=2))
    assert code == 0, err
    assert "skips the damaged checkpoint" in out
    for name, read in READERS.items():
        rows = read(tmp_path / "c/logs")
        assert [step for step, _ in rows] == list(range(1, 31)), name
        assert [loss for _, loss in rows] == pytest.approx(
            [loss for _, loss in undisturbed], rel=1e-4
        ), name


class Shaky(Logger):
    """Fails as often as it is told, after the first row."""

    name = "shaky"

    def __init__(self) -> None:
        super().__init__(Path())
        self.rows: list[Row] = []
        self.failures = 0

    def read(self) -> dict[str, int]:
        return {name: step for step, values in self.rows for name in values}

    def write(self, rows) -> None:
        for row in rows:
            self.rows.append(row)
            if self.failures:
                self.failures -= 1
                raise OSError("the server is away")


def test_a_logger_that_fails_is_told_once_and_gets_what_it_lacks_later():
    logger, said = Shaky(), []
    log = Log([logger], say=said.append)
    logger.failures = 2
    for step in (1, 2, 3):
        log.add(step, {"loss": step / 2})
        log.add(step, {"lr": 0.1})
        carried = log.state()
        log.commit(step)
        log.join(None)
    assert [step for step, _ in logger.rows] == [1, 2, 3]
    assert [step for step, _ in carried] == [1, 2, 3], "nothing was confirmed before the third"
    assert "the server is away" in said[0]
    assert said[1:] == ["shaky takes rows again"]
    log.add(4, {"loss": 2.0})
    log.close()
    assert len(logger.rows) == 3, "no checkpoint covers the fourth"


def test_a_start_hands_over_what_its_checkpoint_carried_and_the_logger_lacks():
    logger = Shaky()
    logger.rows = [(1, {"loss": 0.5, "lr": 0.1}), (2, {"loss": 0.4})]  # killed within the second
    log = Log([logger])
    log.restore([[2, {"loss": 0.4, "lr": 0.1}], [3, {"loss": 0.3}]], 3)
    log.close()
    assert logger.rows[2:] == [(2, {"lr": 0.1}), (3, {"loss": 0.3})]


def test_a_logger_that_is_not_there_is_told_with_the_command_that_installs_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [logger.name for logger in open_loggers("csv, ", tmp_path)] == ["csv"]
    with pytest.raises(InputError, match="pip install mlflow-skinny"):
        open_loggers("csv,mlflow", tmp_path)
    with pytest.raises(InputError, match="is none of csv, tensorboard"):
        open_loggers("tensorbord", tmp_path)
    assert not list(tmp_path.iterdir())
