"""Trainings of Hugging Face's Trainer that end anywhere and go on."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from fabric_train.trainers import Companion
from tests.fabric_train.test_transformers import SAMPLES, Model, transformers


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
        {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"},
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
