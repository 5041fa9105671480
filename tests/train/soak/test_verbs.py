"""fit, validate, test and predict, and a training that stops early."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fabric_train.launch.fabric import leave_world
from fabric_train.worker_env import WorkerEnv, parse_worker_env
from tests.fabric_train.forked import run_forked
from tests.train.test_verbs import config
from train.config import TrainConfig
from train.evaluation import PREDICTIONS_FILE
from train.loop import train


def look(verb: str, config: TrainConfig, folder: Path) -> object:
    env = replace(parse_worker_env(os.environ), run_dir=folder, checkpoint_dir=None)
    scores = train(config, env, verb=verb)
    leave_world()
    return scores


def test_it_stops_early_and_a_resume_finds_it_stopped_and_each_verb_sees_that_model(
    config, tmp_path, capsys
):
    env = WorkerEnv(run_dir=tmp_path / "run", progress="lines")
    metrics = train(config, env)
    assert metrics["steps"] < 40 * 12
    assert "stops early: it has not fallen for 1 epochs" in capsys.readouterr().out
    again = train(config, env)
    assert (again["resumed_from_step"], again["steps"]) == (metrics["steps"],) * 2
    before = sorted((tmp_path / "checkpoints").rglob("*"))

    tested = train(config, env, verb="test")
    assert tested["test_loss"] == pytest.approx(metrics["test_loss"])
    assert train(config, env, verb="validate")["test_samples"] == round(1440 * 0.2)
    alone, two = tmp_path / "alone", tmp_path / "two"
    train(config, replace(env, run_dir=alone), verb="predict")
    run_forked(look, 2, "predict", config, two, group=False)
    lines = (alone / PREDICTIONS_FILE).read_text().splitlines()
    assert [line.partition(",")[0] for line in lines[1:]] == [str(n) for n in range(357)]
    classes = [[line.split(",")[1] for line in (f / PREDICTIONS_FILE).read_text().splitlines()]
               for f in (alone, two)]  # fmt: skip
    assert classes[0] == classes[1]
    assert sorted((tmp_path / "checkpoints").rglob("*")) == before, "a look writes nothing"
