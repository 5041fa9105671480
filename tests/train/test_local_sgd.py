"""``--strategy local_sgd`` and ``diloco``: the whole training, a worker killed, worlds resized."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from fabric_train.sampler import GlobalBatchSampler
from fabric_train.worker_env import parse_worker_env
from tests.fabric_train.forked import run_forked
from tests.train.test_main import committed, metrics_in, worker_of
from train.config import parse_config
from train.loop import train

LOCAL_SGD = ("--strategy=local_sgd",)
DILOCO = ("--strategy=diloco", "--strategy_options.every=10")
BOTH = pytest.mark.parametrize("options", [LOCAL_SGD, DILOCO], ids=["local_sgd", "diloco"])


@pytest.mark.slow
@BOTH
def test_two_workers_reach_the_accuracy_on_digits(processes, finish, options):
    run = processes.start_torchrun(2, "-m", "train", *options, RUN_DIR="run")
    code, _, err = finish(run)
    assert code == 0, err
    metrics = metrics_in(processes.folder / "run")
    assert (metrics["steps"], metrics["world_size"]) == (150, 2)
    assert metrics["test_accuracy"] >= 0.97
    assert metrics["test_samples"] == 357


@pytest.mark.slow  # the strategies' own tests have a short form
@BOTH
def test_a_killed_worker_changes_no_bit_of_the_weights(processes, finish, wait_until, options):
    digests = []
    for name, kill in (("killed", True), ("whole", False)):
        run = processes.start_torchrun(
            *(3, "--max-restarts=1", "-m", "train", "--epochs=4", "--checkpoint_every_steps=5"),
            *options,
            RUN_DIR=name,
        )
        folder = processes.folder / name
        if kill:
            wait_until(lambda folder=folder: committed(folder / "checkpoints"), run)
            os.kill(worker_of(run.pid, rank=1), signal.SIGKILL)
        code, _, err = finish(run)
        assert code == 0, err
        metrics = metrics_in(folder)
        assert (metrics["resumed_from_step"] > 0) == kill
        digests.append(metrics["weights_sha256"])
    assert digests[0] == digests[1]


def test_resized_worlds_take_each_sample_of_an_epoch_once(tmp_path, monkeypatch):
    def train_to(stop: int, options: tuple[str, ...]) -> tuple[int, list[int]]:
        taken: list[int] = []
        iterate = GlobalBatchSampler.__iter__

        def watch(sampler: GlobalBatchSampler) -> Iterator[list[int]]:
            for samples in iterate(sampler):
                taken.extend(samples)
                yield samples

        monkeypatch.setattr(GlobalBatchSampler, "__iter__", watch)
        given = ["--virtual_shards=4", "--checkpoint_dir", str(tmp_path), f"--max_steps={stop}"]
        metrics = train(parse_config([*given, *options]), parse_worker_env(os.environ))
        return metrics["resumed_from_step"], taken

    # 1,440 samples in 15 steps; 6 and 11 lie between two meetings.
    seen: Counter[int] = Counter()
    before = 0
    for ranks, stop in ((2, 6), (3, 11), (1, 15)):
        for resumed, taken in run_forked(train_to, ranks, stop, LOCAL_SGD, group=False):
            assert resumed == before
            seen.update(taken)
        before = stop
    assert len(seen) == 1440
    assert set(seen.values()) == {1}


def test_a_process_alone_trains_as_without_the_strategy(tmp_path):
    def digest(name: str) -> str:
        options = ["--max_steps=4", "--checkpoint_dir", str(tmp_path / name)]
        return train(parse_config([*options, f"--strategy={name}"]), parse_worker_env(os.environ))[
            "weights_sha256"
        ]

    (alone,), (local,) = (run_forked(digest, 1, name, group=False) for name in ("ddp", "local_sgd"))
    assert alone == local
