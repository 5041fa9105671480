"""``--strategy local_sgd`` and ``diloco``: the whole training, a worker killed, worlds resized."""

import os
from collections import Counter
from collections.abc import Iterator

from fabric_train.sampler import GlobalBatchSampler
from fabric_train.worker_env import parse_worker_env
from tests.fabric_train.forked import run_forked
from train.config import parse_config
from train.loop import train

LOCAL_SGD = ("--strategy=local_sgd",)


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
