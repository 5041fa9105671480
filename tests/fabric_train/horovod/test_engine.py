"""Requests that do not arrive in one order, or do not arrive at all."""

import os
import signal
import time

import pytest
import torch

import fabric_train.horovod as hvd
from fabric_train.horovod import collectives
from fabric_train.horovod.engine import HorovodInternalError
from tests.fabric_train.forked import ForkedError, run_forked
from tests.fabric_train.horovod.test_operations import run


def test_requests_are_matched_by_name_in_whatever_order_ranks_make_them():
    def shuffle() -> list[float]:
        names = [str(number) for number in range(20)]
        order = names if hvd.rank() == 0 else names[::-1]
        handles = {
            name: hvd.allreduce_async(torch.tensor(float(name)), name=name) for name in order
        }
        return [hvd.synchronize(handles[name]).item() for name in names]

    assert run(shuffle) == [[float(number) for number in range(20)]] * 2


def test_a_name_that_is_still_in_use_is_refused():
    def ask_twice() -> None:
        if hvd.rank() == 0:
            first = hvd.allreduce_async(torch.ones(1), name="twice")
            with pytest.raises(ValueError, match=r"Duplicate tensor name: allreduce\.twice"):
                hvd.allreduce_async(torch.ones(1), name="twice")
            hvd.broadcast_object(None)  # rank 1 asks from here on
            assert hvd.synchronize(first).item() == 1.0
        else:
            hvd.broadcast_object(None)
            hvd.allreduce(torch.ones(1), name="twice")

    run(ask_twice)


@pytest.mark.parametrize(
    "other",
    [
        lambda: hvd.allreduce(torch.ones(3), name="x"),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.float64), name="x"),
        lambda: hvd.allreduce(torch.ones(2), name="x", op=hvd.Sum),
    ],
    ids=["shape", "type", "operation"],
)
def test_different_wishes_under_one_name_fail_on_all_ranks_and_the_next_goes_on(other):
    def differ() -> float:
        with pytest.raises(HorovodInternalError, match=r"Mismatched requests for allreduce\.x"):
            hvd.allreduce(torch.ones(2), name="x") if hvd.rank() == 0 else other()
        return hvd.allreduce(torch.ones(1)).item()

    assert run(differ) == [1.0, 1.0]


def test_different_roots_are_told():
    def differ() -> None:
        with pytest.raises(HorovodInternalError, match=r"root 0.*root 1"):
            hvd.broadcast(torch.ones(1), root_rank=hvd.rank())

    run(differ)


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_peer_that_is_killed_is_an_error_in_the_others(in_the_middle):
    def lose() -> None:
        hvd.allreduce(torch.ones(1))
        if hvd.rank() == 1:
            kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            collectives.PERFORM["allreduce"] = kill if in_the_middle else kill()
        with pytest.raises(HorovodInternalError, match="another rank has ended"):
            hvd.allreduce(torch.ones(1))
        with pytest.raises(HorovodInternalError):
            hvd.broadcast(torch.ones(1), 0)
        raise KeyError("rank 0 has seen it")

    with pytest.raises(ForkedError, match=r"rank 0 has seen it") as told:
        run(lose)
    assert "rank 1 died: exit code -9" in str(told.value)


def test_a_peer_that_has_shut_down_is_an_error_in_the_others():
    def leave() -> None:
        if hvd.rank() == 0:
            with pytest.raises(HorovodInternalError, match="rank 1 has shut Horovod down"):
                hvd.allreduce(torch.ones(1))

    run(leave)


def test_a_long_wait_is_told(capfd):
    def stall() -> float:
        os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = "0.3"
        hvd.init()
        if hvd.rank() == 1:
            time.sleep(1)
        return hvd.allreduce(torch.ones(1), name="late").item()

    assert run_forked(stall, 2, group=False) == [1.0, 1.0]
    assert "allreduce.late has waited" in capfd.readouterr().err
