"""Trainings of Hugging Face's Trainer that end anywhere and go on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fabric_train.trainers.companion import Companion

transformers = pytest.importorskip("transformers", reason="the transformers extra is missing")

SAMPLES = [{"inputs": torch.randn(3), "labels": torch.tensor(i % 2)} for i in range(22)]


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.2), nn.Linear(width, 2))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Ending(transformers.TrainerCallback):
    """Fails after a number of this start's steps."""

    def __init__(self, after: float) -> None:
        self.left = after

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("a worker was lost")


def train(
    folder: Path, after: float = float("inf"), width: int = 8, **options: Any
) -> list[dict[str, Any]]:
    """One start, whose process would end with it; gives the rows of the newest checkpoint's log."""
    from fabric_train.transformers import with_continuity

    Companion.opened.clear()
    transformers.set_seed(3)
    options = {"num_train_epochs": 4, "per_device_train_batch_size": 4, **options}
    trainer = transformers.Trainer(
        Model(width),
        transformers.TrainingArguments(
            output_dir=str(folder / "output"),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=3,
            lr_scheduler_type="cosine",
            **options,
        ),
        train_dataset=SAMPLES,
        eval_dataset=SAMPLES[:6],
        callbacks=[Ending(after)],
    )
    if options.get("eval_strategy"):
        trainer.add_callback(transformers.EarlyStoppingCallback(2))
    trainer = with_continuity(trainer, str(folder / "checkpoints"), every_n_steps=1)
    with contextlib.suppress(ConnectionError):
        trainer.train()
    state = json.loads((folder / "checkpoints/latest/trainer_state.json").read_text())
    timed = ("train_runtime", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
    rows = [{k: v for k, v in row.items() if k not in timed} for row in state["log_history"]]
    return [row for row in rows if "train_loss" not in row]


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2, "dataloader_num_workers": 1},
        pytest.param(
            {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["accumulating", "evaluating"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_training_that_ends_anywhere_goes_on_as_if_it_had_not(tmp_path, options):
    undisturbed = train(tmp_path / "undisturbed", **options)
    assert len(undisturbed) > 3
    folder = tmp_path / "disturbed"
    rows: list[dict[str, Any]] = []
    for start in range(20):
        rows = train(folder, after=2 + start % 3, **options)
        if rows == undisturbed:
            break
    assert rows == undisturbed
    # A script that starts once more has nothing to train, also after it has stopped early.
    assert train(folder, **options) == undisturbed


@pytest.mark.filterwarnings("ignore")
def test_what_does_not_fit_is_refused_or_told(tmp_path, capfd, monkeypatch):
    train(tmp_path, after=3)
    with pytest.raises(SystemExit, match="2"):
        train(tmp_path, width=9)
    assert "net.0.weight is [9, 3], but [8, 3]" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        train(tmp_path, per_device_train_batch_size=2)
    assert "batch_size is 2, but 4" in capfd.readouterr().err
    train(tmp_path, auto_find_batch_size=True)
    assert "auto_find_batch_size change what a batch is: no checkpoints" in capfd.readouterr().out
    monkeypatch.delenv("CHECKPOINT_DIR", raising=False)
    from fabric_train.transformers import with_continuity

    untouched = object()
    assert with_continuity(untouched) is untouched
    assert capfd.readouterr().out == ""


def test_processes_that_the_trainer_does_not_join_are_refused(tmp_path, capfd, monkeypatch):
    from fabric_train.transformers import with_continuity

    # It sees one process, as in torchrun's where there is neither a GPU nor use_cpu.
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = transformers.Trainer(Model(8), arguments, train_dataset=SAMPLES)
    assert with_continuity(trainer, str(tmp_path)) is trainer
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        with_continuity(trainer, str(tmp_path)).train()
    told = capfd.readouterr().err
    assert "2 processes were started, but train in groups of 1" in told
    assert "TrainingArguments(use_cpu=" in told
