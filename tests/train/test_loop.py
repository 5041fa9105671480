"""The training in this process: one device, few steps."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from fabric_train.checkpointing.manifest import read_manifest
from fabric_train.checkpointing.snapshot import read_tensors
from fabric_train.errors import DivergedError, InputError
from fabric_train.strategies.ddp import Ddp, sync_batch_norm
from fabric_train.worker_env import WorkerEnv
from tests.fabric_train.forked import world_of
from train.config import TrainConfig
from train.loop import train
from train.resume import choose_checkpoint_dir


@pytest.fixture
def env(tmp_path) -> WorkerEnv:
    return WorkerEnv(run_dir=tmp_path / "run", progress="lines")


def checkpoints(env: WorkerEnv) -> list[Path]:
    return sorted((env.run_dir / "checkpoints").glob("step-*"))


def steps(env: WorkerEnv) -> list[int]:
    return [int(path.name[5:15]) for path in checkpoints(env)]


def newest_weights(env: WorkerEnv) -> dict[str, torch.Tensor]:
    tensors = read_tensors(checkpoints(env)[-1])
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}


def test_what_train_returns_is_what_metrics_json_holds(env):
    metrics = train(TrainConfig(max_steps=2), env)
    written = json.loads((env.run_dir / "metrics.json").read_text())
    assert written == metrics
    assert {key: type(value) for key, value in metrics.items()} == {
        "test_accuracy": float,
        "test_loss": float,
        "test_samples": int,
        "train_loss": float,
        "duration_s": float,
        "fit_s": float,
        "samples_per_s": float,
        "mfu": type(None),
        "median_step_s": float,
        "first_step_at": float,
        "steps": int,
        "skipped_steps": int,
        "epochs": int,
        "resumed_from_step": int,
        "world_size": int,
        "global_batch_size": int,
        "checkpoint": str,
        "weights_sha256": str,
    }
    assert metrics["test_samples"] == 357
    assert Path(metrics["checkpoint"]).is_dir()


def test_there_is_a_checkpoint_at_every_epochs_end_and_at_the_end(env):
    train(TrainConfig(max_steps=34, keep_checkpoints=9), env)
    assert {15, 30, 34} <= set(steps(env))


@dataclass
class Watched(Ddp):
    """Tells what the training calls beside its steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls: list[str] = []

    def before_save(self) -> None:
        self.calls.append("before")

    def after_save(self) -> None:
        self.calls.append("after")

    def memory(self) -> dict[str, torch.Tensor]:
        return {"kept": torch.tensor([1.5])}

    def load_memory(self, saved: Mapping[str, torch.Tensor]) -> None:
        self.calls.append(f"load {saved['kept'].tolist()}")

    def close(self) -> None:
        self.calls.append("close")


def test_a_strategy_is_asked_for_each_save_gets_its_memory_back_and_is_closed(env, monkeypatch):
    made = []

    def choose(config):
        made.append(Watched())
        return made[-1]

    monkeypatch.setattr("train.loop.choose_strategy", choose)
    options = {"checkpoint_every_steps": 2, "keep_checkpoints": 9}
    train(TrainConfig(max_steps=5, **options), env)
    assert steps(env) == [2, 4, 5]
    # For three saves, and for the test.
    assert made[-1].calls == [*["before", "after"] * 4, "close"]
    train(TrainConfig(max_steps=5, **options), env)
    assert made[-1].calls == ["load [1.5]", *["before", "after"] * 2, "close"]
    with pytest.raises(InputError):
        train(TrainConfig(max_steps=9, seed=1), env)
    assert made[-1].calls == ["close"]


def test_an_interrupted_training_ends_with_the_same_bits_as_an_uninterrupted_one(env, tmp_path):
    config = TrainConfig(epochs=2)
    for max_steps in (5, 7, 22):  # two within one epoch
        train(TrainConfig(epochs=2, max_steps=max_steps), env)
    resumed = train(config, env)
    whole_env = WorkerEnv(run_dir=tmp_path / "whole")
    whole = train(config, whole_env)

    assert (resumed["resumed_from_step"], whole["resumed_from_step"]) == (22, 0)
    weights, expected = newest_weights(env), newest_weights(whole_env)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert resumed["test_loss"] == whole["test_loss"]
    assert resumed["train_loss"] == pytest.approx(whole["train_loss"])


def test_a_finished_training_only_tests_again_and_says_so(env, capsys):
    first = train(TrainConfig(max_steps=3), env)
    again = train(TrainConfig(max_steps=3), env)
    assert "already trained 3 of 3 steps, only tests" in capsys.readouterr().out
    assert again["steps"] == again["resumed_from_step"] == 3
    assert again["samples_per_s"] == again["first_step_at"] == 0
    for same in ("test_accuracy", "test_loss", "train_loss", "checkpoint"):
        assert again[same] == first[same]


def test_a_checkpoint_of_other_options_is_refused_and_left_alone(env):
    train(TrainConfig(max_steps=2), env)
    before = newest_weights(env)
    with pytest.raises(InputError, match=r"lr is 0.01, but 0.003"):
        train(TrainConfig(max_steps=4, lr=0.01), env)
    after = newest_weights(env)
    assert all(torch.equal(after[name], before[name]) for name in before)


@dataclass
class Spoilt(Ddp):
    """Its step 17 has a gradient without a number."""

    def step(self, number: int) -> None:
        if number == 16:
            self.bare[0].weight.grad[0, 0] = float("nan")
        super().step(number)


def test_a_last_step_that_spoils_the_weights_leaves_a_good_newest_checkpoint(env, monkeypatch):
    config = TrainConfig(max_steps=17)
    with monkeypatch.context() as patch:
        patch.setattr("train.loop.choose_strategy", lambda config: Spoilt())
        with pytest.raises(DivergedError, match="a weight is not a finite number after step 17"):
            train(config, env)
    assert train(config, env)["resumed_from_step"] == 15


def test_a_test_loss_without_a_number_is_an_error_in_every_start(env):
    # One step's loss is finite, and so are the huge weights that it makes.
    for _ in range(2):
        with pytest.raises(DivergedError, match=r"the test loss is (nan|inf)"):
            train(TrainConfig(max_steps=1, lr=1e30, warmup_steps=0), env)


def test_a_resume_that_has_no_step_left_before_the_first_epochs_end_writes_no_loss(env):
    train(TrainConfig(max_steps=4, checkpoint_every_steps=2, keep_checkpoints=9), env)
    shutil.rmtree(checkpoints(env)[-1])
    assert train(TrainConfig(max_steps=1), env)["train_loss"] is None
    assert json.loads((env.run_dir / "metrics.json").read_text())["train_loss"] is None


def test_more_ranks_than_virtual_shards_are_refused_before_waiting_for_them():
    with pytest.raises(InputError, match="17 processes"):
        train(TrainConfig(reduction="exact"), WorkerEnv(world=world_of(17, local=1)))


def test_loader_processes_give_the_same_training(env, tmp_path):
    config = TrainConfig(max_steps=3)
    alone = train(config, env)
    helped = train(TrainConfig(max_steps=3, num_workers=1), WorkerEnv(run_dir=tmp_path / "helped"))
    assert helped["train_loss"] == pytest.approx(alone["train_loss"])


def test_one_process_has_nothing_to_synchronise_its_batch_norms_with(env, tmp_path):
    config = TrainConfig(max_steps=3, batch_norm=True)
    plain = train(config, env)
    other = WorkerEnv(run_dir=tmp_path / "other")
    synced = train(replace(config, sync_batchnorm=True), other)
    assert synced["weights_sha256"] == plain["weights_sha256"]
    with pytest.raises(InputError, match="the model has no BatchNorm"):
        train(TrainConfig(sync_batchnorm=True), WorkerEnv(run_dir=tmp_path / "none"))


def test_processes_on_cpus_are_told_that_torch_cannot_synchronise_their_batch_norms():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(InputError, match="for GPUs only, and 2 processes train on CPUs"):
        sync_batch_norm(model, torch.device("cpu"), 2)
    converted = sync_batch_norm(model, torch.device("cuda"), 2)
    assert isinstance(converted[1], torch.nn.SyncBatchNorm)


@pytest.mark.parametrize(
    ("config", "env", "folder"),
    [
        (TrainConfig(checkpoint_dir=Path("option")),
         WorkerEnv(checkpoint_dir=Path("variable"), run_dir=Path("run")), "option"),
        (TrainConfig(), WorkerEnv(checkpoint_dir=Path("variable"), run_dir=Path("run")),
         "variable"),
        (TrainConfig(), WorkerEnv(run_dir=Path("run")), "run/checkpoints"),
    ],
)  # fmt: skip
def test_checkpoints_go_where_they_are_told_the_option_first(config, env, folder):
    assert choose_checkpoint_dir(config, env) == Path(folder)


def test_checkpoints_without_a_named_folder_go_into_one_that_is_new():
    folder = choose_checkpoint_dir(TrainConfig(), WorkerEnv())
    assert folder.parts[:2] == ("runs", "train")
    assert folder.name == "checkpoints"
    assert len(folder.parts) == 4


def test_a_training_keeps_the_shards_it_began_with_whatever_its_world_may_grow_to(env):
    def shards() -> int:
        return read_manifest(checkpoints(env)[-1]).config["virtual_shards"]

    train(TrainConfig(max_steps=2), replace(env, max_world_size=4))
    assert shards() == 4
    metrics = train(TrainConfig(max_steps=4), env)
    assert metrics["resumed_from_step"] == 2
    assert shards() == 4
    with pytest.raises(InputError, match="virtual_shards is 2, but 4"):
        train(TrainConfig(max_steps=6, virtual_shards=2), env)
