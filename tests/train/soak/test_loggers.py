"""What four loggers hold after a training that was killed, went back, and went on in another world.

Each is read by its own reader.
"""

import csv
from pathlib import Path

import pytest

import train.loop  # so that forks have it
from fabric_train.loggers import WandbLogger

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
