"""``python -m train`` as a person or torchrun starts it: whole programs, to their end."""

import json
from pathlib import Path

from train.__main__ import main

LEFT_WORLD = Path(__file__).parent / "programs" / "left_world.py"


def test_wrong_input_is_told_in_few_lines_and_exits_2(processes, finish):
    code, out, err = finish(processes.start("-m", "train", "--epohcs", "3"))
    assert (code, out) == (2, "")
    assert "did you mean epochs?" in err
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


def test_an_interrupted_training_exits_130(monkeypatch, capfd):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("train.loop.train", interrupt)
    assert main([]) == 130
    assert capfd.readouterr().err == "train: interrupted\n"


def test_nothing_holds_the_wrapped_model_when_the_world_is_left(processes, finish):
    # Held any longer, it can make the process hang at its very end: see leave_world.
    code, out, err = finish(processes.fork(str(LEFT_WORLD), ranks=2))
    assert code == 0, err
    assert out.count("models left: 0 of 1\n") == 2
