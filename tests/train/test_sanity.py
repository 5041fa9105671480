"""The pass before a training: it finds what would fail later, and leaves no trace."""

from dataclasses import replace
from pathlib import Path

import pytest

from fabric_train.checkpointing.commit import Save, SaveResult
from fabric_train.errors import DivergedError, InputError
from fabric_train.worker_env import WorkerEnv
from train.config import TrainConfig
from train.loop import train


def test_a_resume_makes_no_pass(tmp_path, capsys):
    config = TrainConfig(checkpoint_dir=tmp_path, max_steps=1, sanity_pass=True)
    train(config, WorkerEnv())
    assert capsys.readouterr().out.count("sanity pass: all parts work") == 1
    train(config, WorkerEnv())
    assert "sanity pass" not in capsys.readouterr().out


def no_space(save: Save, blocked_s: float) -> SaveResult:
    return SaveResult(step=1, path=None, error="No space left on device", blocked_s=blocked_s)


def evaluate_badly(*arguments: object) -> None:
    raise KeyError("a label")


def test_a_part_that_fails_is_named_before_the_training_and_nothing_is_left(
    tmp_path, monkeypatch, capsys
):
    def fail(part: str, expected: type[Exception], config: TrainConfig) -> None:
        with pytest.raises(expected) as failed:
            train(config, WorkerEnv())
        note = f"sanity pass: the {part} failed, before the training began"
        assert failed.value.__notes__ == [note]
        assert list(Path(tmp_path).iterdir()) == []

    config = TrainConfig(checkpoint_dir=tmp_path, max_steps=1, sanity_pass=True)
    with monkeypatch.context() as patch:
        patch.setattr(Save, "run", no_space)
        fail("checkpoint", InputError, config)
        assert "No space left on device" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr("train.sanity.evaluate", evaluate_badly)
        fail("validation", KeyError, config)
    fail("validation", DivergedError, replace(config, lr=1e38, warmup_steps=0))
