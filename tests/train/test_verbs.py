"""fit, validate, test and predict, and a training that stops early."""

from dataclasses import replace
from pathlib import Path

import pytest

from fabric_train.errors import InputError
from fabric_train.worker_env import WorkerEnv
from train.config import TrainConfig, parse_config
from train.loop import train


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        checkpoint_dir=tmp_path / "checkpoints", lr=0.1, val_share=0.2, patience=1, epochs=40
    )


def test_accumulated_micro_batches_are_virtual_shards_of_each_process(config, tmp_path):
    env = WorkerEnv(run_dir=tmp_path / "run", progress="lines")
    few = replace(config, max_steps=2, patience=None)
    four = train(replace(few, accumulate=4), env)
    other = replace(few, virtual_shards=4, checkpoint_dir=tmp_path / "other")
    assert train(other, env)["weights_sha256"] == four["weights_sha256"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--patience", "3"], "--val_share 0.1"),
        (["--accumulate", "2", "--virtual_shards", "4"], "give one of them"),
        (["--val_share", "1"], "val_share"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words, what):
    with pytest.raises(InputError) as refused:
        parse_config(words)
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"accumulate": 5}, "96 samples cannot be cut into 5 equal parts",
         "--accumulate 1 or 2 or"),
        ({"accumulate": 97}, "into 97 equal parts for each of 1 processes", "or 48"),
        ({"val_share": 1e-4}, "keeps back none of 1440 samples", "--val_share 0.00069 or more"),
        ({"val_share": 0.999}, "96 is more than the 1 training samples", "size 1 or less"),
        ({"val_share": 0.999, "virtual_shards": 2}, "more than the 1 training", "more samples, or"),
        ({"global_batch_size": 2000}, "2000 is more than the 1440", "--global_batch_size 1440"),
    ],
)  # fmt: skip
def test_a_batch_that_the_data_cannot_fill_is_refused_with_numbers_that_work(
    tmp_path, options, what, fix
):
    with pytest.raises(InputError) as refused:
        train(TrainConfig(checkpoint_dir=tmp_path, **options), WorkerEnv())
    assert what in refused.value.what
    assert fix in refused.value.fix


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_a_look_without_a_checkpoint_says_where_it_looked(verb, tmp_path):
    with pytest.raises(InputError, match=f"{verb}: no checkpoint in {tmp_path}"):
        train(TrainConfig(checkpoint_dir=tmp_path), WorkerEnv(), verb=verb)
