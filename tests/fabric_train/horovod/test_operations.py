"""Collectives by Horovod's names, in forked ranks."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fabric_train.horovod as hvd
from tests.fabric_train.forked import run_forked


def run(function: Any, world: int = 2, **more: Any) -> list[Any]:
    """Its results in ranks that have called ``init``, and shut down afterwards."""

    def work() -> Any:
        hvd.init()
        result = function()
        hvd.shutdown()
        return result

    return run_forked(work, world, group=False, **more)


def test_before_init_each_function_says_so():
    assert not hvd.is_initialized()
    for function in (hvd.rank, hvd.size, hvd.local_rank, hvd.barrier):
        with pytest.raises(ValueError, match=r"not been initialized; use hvd.init\(\)"):
            function()


def test_gradients_flow_through_collectives():
    def differentiate() -> None:
        rank = hvd.rank()
        x = torch.full((2,), float(rank + 1), requires_grad=True)
        (hvd.allreduce(x, op=hvd.Sum) * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]
        x.grad = None
        rows = hvd.allgather(x[: rank + 1])
        (rows * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
        assert x.grad.tolist() == ([1.0, 0.0] if rank == 0 else [10.0, 100.0])

    run(differentiate)


def test_the_parameters_and_the_optimizer_become_those_of_the_root():
    def spread() -> list[Any]:
        torch.manual_seed(hvd.rank())
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=0.1 * (hvd.rank() + 1), betas=(0.5, 0.9)
        )
        if hvd.rank() == 0:  # the other has made no step, and so has no state
            model(torch.rand(4, 3)).sum().backward()
            optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        other = torch.nn.Linear(2, 1)
        hvd.broadcast_parameters(list(other.named_parameters()), root_rank=1)
        hvd.broadcast_parameters(list(other.parameters()), root_rank=0)
        state = optimizer.state_dict()
        moments = [each["exp_avg"].tolist() for each in state["state"].values()]
        weights = [tensor.tolist() for tensor in model.state_dict().values()]
        return [weights, moments, state["param_groups"], next(iter(other.parameters())).tolist()]

    first, second = run(spread)
    assert first == second
    assert first[2][0]["lr"] == 0.1
    assert first[2][0]["betas"] == (0.5, 0.9)
    assert any(first[1][-1])


def test_what_cannot_be_is_refused_at_the_call():
    def refuse() -> None:
        one = torch.ones(1)
        with pytest.raises(ValueError, match="provide only op"):
            hvd.allreduce(one, average=True, op=hvd.Sum)
        with pytest.raises(ValueError, match=r"root_rank 2 is not one of 2 ranks"):
            hvd.broadcast(one, 2)
        with pytest.raises(ValueError, match=r"give tensor.reshape\(1\)"):
            hvd.allgather(torch.tensor(1.0))
        with pytest.raises(NotImplementedError, match="floating-point"):
            hvd.allreduce(torch.ones(1, dtype=torch.int64), op=hvd.Adasum)
        with pytest.raises(NotImplementedError, match=r"tensor.to_dense\(\)"):
            hvd.allreduce(one.to_sparse())

    run(refuse)


def test_one_process_alone_needs_no_group():
    def alone() -> None:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            del __import__("os").environ[name]
        hvd.init()
        hvd.init()
        assert (hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_size()) == (0, 1, 1, 1)
        x = torch.arange(3.0, requires_grad=True)
        for result in (hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0)):
            assert result.tolist() == [0.0, 1.0, 2.0]
        assert hvd.allreduce(x, op=hvd.Adasum).tolist() == [0.0, 1.0, 2.0]
        assert hvd.broadcast_object("it") == "it"
        assert not torch.distributed.is_initialized()
        hvd.shutdown()
        assert not hvd.is_initialized()

    run_forked(alone, 1, group=False)


def test_a_group_that_the_script_made_is_used_and_left_alone():
    def share() -> float:
        hvd.init()
        result = hvd.allreduce(torch.ones(1), op=hvd.Sum)
        torch.distributed.all_reduce(result)
        hvd.shutdown()
        assert torch.distributed.is_initialized()
        return result.item()

    assert run_forked(share, 2) == [4.0, 4.0]


def test_init_after_shutdown_begins_anew():
    def twice() -> float:
        hvd.init()
        if hvd.rank() == 0:
            leave = dist.destroy_process_group
            # Rank 1 begins anew while rank 0 is still leaving.
            dist.destroy_process_group = lambda: time.sleep(0.5) or leave()
        hvd.shutdown()
        hvd.init()
        result = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
        hvd.shutdown()
        return result

    assert run_forked(twice, 2, group=False) == [2.0, 2.0]
