"""``python -m train`` as a person or torchrun starts it: whole programs, to their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train.__main__ import main

LEFT_WORLD = Path(__file__).parent / "programs" / "left_world.py"


def metrics_in(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def committed(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--epochs", "none"], "none"),
        (["--epohcs", "3"], "did you mean epochs?"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_wrong_input_is_told_in_few_lines_and_exits_2(processes, finish, arguments, told):
    code, out, err = finish(processes.start("-m", "train", *arguments))
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 4


def test_a_wrong_environment_exits_2(processes, finish):
    code, _, err = finish(processes.start("-m", "train", RANK="0", WORLD_SIZE="2"))
    assert code == 2
    assert "LOCAL_RANK" in err
    assert "Traceback" not in err


def test_a_failed_training_exits_1_and_leaves_its_exception_for_the_launcher(processes, finish):
    error_file = processes.folder / "error.json"
    training = processes.fork(
        "-m",
        "train",
        *("--lr", "1e30", "--warmup_steps", "0"),
        TORCHELASTIC_ERROR_FILE=str(error_file),
    )
    code, _, _ = finish(training)
    assert code == 1
    assert "DivergedError" in json.loads(error_file.read_text())["message"]["message"]


@pytest.mark.slow  # README's commands train so in every CI
def test_two_workers_train_one_model_and_rank_0_speaks_for_both(processes, finish):
    run = processes.start_torchrun(
        2, "-m", "train", RUN_DIR="run", LAUNCHER_PROGRESS="bar", LAUNCHER_RDZV_BACKEND="c10d"
    )
    code, out, err = finish(run)
    metrics = metrics_in(processes.folder / "run")
    assert code == 0, err
    assert metrics["world_size"] == 2
    assert metrics["test_accuracy"] >= 0.97
    # Each test image counts once: a padded share would make it 358.
    assert metrics["test_samples"] == 357
    assert "ddp over gloo" in out
    assert "96 (2 virtual shards)" in out
    assert "c10d, rank 0 at " in out
    assert out.count("test accuracy") == 1
    assert "\repoch 10/10  step 150/150" in err
    assert "Traceback" not in err


def worker_of(agent: int, *, rank: int) -> int:
    """The process id of one of torchrun's workers."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no worker of rank {rank} among {children}")


def test_an_interrupted_training_exits_130(monkeypatch, capfd):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("train.loop.train", interrupt)
    assert main([]) == 130
    assert capfd.readouterr().err == "train: interrupted\n"


def test_nothing_holds_the_wrapped_model_when_the_world_is_left(processes, finish):
    # Held any longer, it can make the process hang at its very end: see leave_world.
    code, out, err = finish(processes.start_torchrun(2, str(LEFT_WORLD)))
    assert code == 0, err
    assert out.count("models left: 0 of 1\n") == 2
