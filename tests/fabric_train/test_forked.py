"""The helper that other tests start their ranks with."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.fabric_train.forked import ForkedError, run_forked


def test_each_ranks_result_comes_back_in_order():
    def add(first: int) -> tuple[int, torch.Tensor]:
        total = torch.tensor([first + dist.get_rank()])
        dist.all_reduce(total)
        return dist.get_rank(), total

    results = run_forked(add, 3, 10)
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert [total.item() for _, total in results] == [33, 33, 33]


def test_a_model_can_be_trained_here_and_in_the_ranks_too():
    def train() -> float:
        model = nn.Sequential(nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1))
        model(torch.ones(500, 200)).sum().backward()
        return model[0].weight.grad.sum().item()

    train()
    assert len(run_forked(train, 2)) == 2


def test_without_a_group_a_rank_has_torchruns_variables_and_those_that_are_given():
    def read() -> tuple[str, ...]:
        return os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MORE"]

    assert run_forked(read, 2, group=False, environ={"MORE": "yes"}) == [
        ("0", "2", "yes"),
        ("1", "2", "yes"),
    ]
    assert "MORE" not in os.environ


def test_ranks_can_be_spread_over_nodes():
    def read() -> tuple[str, ...]:
        return os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]

    ranks = run_forked(read, 4, group=False, nodes=2)
    assert ranks == [("0", "0", "2"), ("1", "1", "2"), ("2", "0", "2"), ("3", "1", "2")]


def test_a_failed_rank_is_told_with_its_traceback_and_the_others_end():
    def fail() -> None:
        if dist.get_rank() == 1:
            raise ValueError("told by rank 1")
        time.sleep(1000)

    with pytest.raises(
        ForkedError, match=r"rank 1 raised: Traceback(.|\n)*told by rank 1"
    ) as caught:
        run_forked(fail, 2)
    assert caught.value.failed == [1]


def test_a_rank_that_is_killed_is_told():
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ForkedError, match="rank 0 died: exit code -9"):
        run_forked(die, 1)


def test_a_rank_that_hangs_is_killed_after_the_limit_and_tells_where_it_stood():
    def hang() -> None:
        if dist.get_rank() == 0:
            dist.barrier()  # for which the other never comes
        else:
            time.sleep(1000)

    began_at = time.monotonic()
    with pytest.raises(ForkedError, match=r"rank 1 hung(.|\n)*in hang"):
        run_forked(hang, 2, limit_s=2)
    assert time.monotonic() - began_at < 15
