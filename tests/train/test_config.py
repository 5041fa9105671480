import dataclasses
import sys
from pathlib import Path

import pytest

from fabric_train.errors import InputError
from tests.programs import run_program
from train.config import FIELDS, TrainConfig, parse_config
from train.resume import MAY_DIFFER_ON_RESUME, fingerprint

REPOSITORY = Path(__file__).resolve().parents[2]


def test_no_arguments_give_the_defaults():
    assert parse_config([]) == TrainConfig()


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("epochs: 7\nlr: 1e-2\nmax_steps: null\n")
    config = parse_config(["--config", str(file), "--epochs", "5", "--precision=bf16-mixed"])
    assert config == TrainConfig(epochs=5, lr=0.01, precision="bf16-mixed")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--epochs", "0"], ["epochs", "0"]),
        (["--epochs", "two"], ["epochs", "two"]),
        (["--max_steps", "-3"], ["max_steps", "-3"]),
        (["--lr", "fast"], ["lr", "fast"]),
        (["--seed", str(2**32)], ["seed", str(2**32)]),
        (["--precision", "fp4"], ["precision", "fp4", "bf16-mixed"]),
        (["--workload", "digit"], ["workload", "digits"]),
        (["--epohcs", "3"], ["--epohcs", "did you mean epochs?"]),
        (["--epoch", "3"], ["--epoch", "did you mean epochs?"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml", "not exist"]),
    ],
)
def test_a_wrong_option_is_refused_by_name_and_value(arguments, told):
    with pytest.raises(InputError) as refused:
        parse_config(arguments)
    for words in told:
        assert words in str(refused.value)


def test_a_variable_that_is_no_option_is_refused_with_the_nearest(monkeypatch):
    monkeypatch.setenv("TRAIN_EPOCHS", "4")
    assert parse_config([]).epochs == 4
    assert parse_config(["--epochs", "2"]).epochs == 2
    monkeypatch.setenv("TRAIN_EPOHCS", "5")
    with pytest.raises(InputError, match=r"TRAIN_EPOHCS=5 .*\n.*mean TRAIN_EPOCHS\? unset TRAIN_"):
        parse_config([])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("epohcs: 3\n", ["epohcs", "did you mean epochs?"]),
        ("epochs: many\n", ["epochs", "many"]),
        ("epochs: [3\n", ["line 1"]),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content, told):
    file = tmp_path / "options.yaml"
    file.write_text(content)
    with pytest.raises(InputError) as refused:
        parse_config(["--config", str(file)])
    for words in told:
        assert words in str(refused.value)


def test_help_describes_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_config(["--help"])
    assert ended.value.code == 0
    blocks = capsys.readouterr().out.split("\n  ARG:   --")
    for name in FIELDS:
        block = next(block for block in blocks if block.startswith(f"{name} "))
        described, typed, _ = " ".join(block.split()).partition(" (type: ")
        assert typed
        assert len(described.split()) > 5, f"{name} has no description"


def test_options_are_parsed_without_importing_torch():
    program = "import sys, train.config, fabric_train.worker_env; print('torch' in sys.modules)"
    seen = run_program([sys.executable, "-c", program], cwd=REPOSITORY, check=True)
    assert seen.stdout == "False\n"


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().epochs = 3  # type: ignore[misc]


def test_the_fingerprint_holds_what_is_trained_and_not_how_long_or_where():
    names = set(fingerprint(TrainConfig()))
    assert names | MAY_DIFFER_ON_RESUME == set(FIELDS)
    assert {"lr", "seed", "global_batch_size", "precision"} <= names
    assert not names & MAY_DIFFER_ON_RESUME
