"""The helper that other tests start their ranks with."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from tests.fabric_train.forked import ForkedError, run_forked


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
