"""Collectives by Horovod's names, in forked ranks."""

import math

import pytest
import torch

import fabric_train.horovod as hvd
from tests.fabric_train.horovod.test_operations import run


@pytest.mark.parametrize("world", [2, 4])
def test_reductions_are_those_of_all_ranks(world):
    def reduce() -> None:
        rank, size = hvd.rank(), hvd.size()
        assert (size, hvd.local_size(), hvd.cross_size(), hvd.cross_rank()) == (world, world, 1, 0)
        assert hvd.local_rank() == rank
        total, product = sum(range(1, size + 1)), math.factorial(size)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64):
            mine = torch.full((2, 3), rank + 1, dtype=dtype)
            cases = {hvd.Sum: total, hvd.Min: 1, hvd.Max: size, hvd.Product: product}
            average = total // size if dtype in (torch.int32, torch.int64) else total / size
            for op, expected in {**cases, hvd.Average: average}.items():
                result = hvd.allreduce(mine, op=op)
                assert result.dtype == dtype
                assert result.tolist() == [[expected] * 3] * 2, (op, dtype)
            assert mine.tolist() == [[rank + 1] * 3] * 2
        bits = hvd.allreduce(torch.tensor([1.5], dtype=torch.bfloat16), op=hvd.Sum)
        assert bits.tolist() == [1.5 * size]
        assert hvd.allreduce(torch.tensor(2.0), average=False).item() == 2.0 * size
        half = hvd.allreduce(torch.tensor([0.1]), compression=hvd.Compression.fp16)
        assert half.dtype == torch.float32
        assert half.item() == torch.tensor(0.1).half().float().item()
        strided = torch.arange(6.0).view(2, 3).t()
        assert hvd.allreduce_(strided) is strided
        assert strided.tolist() == [[0, 3], [1, 4], [2, 5]]
        handle = hvd.allreduce_async(torch.ones(1))
        hvd.barrier()
        assert hvd.poll(handle)
        assert hvd.synchronize(handle).tolist() == [1.0]

    run(reduce, world)


@pytest.mark.parametrize("world", [2, 4])
def test_rows_and_objects_reach_all_ranks(world):
    def move() -> None:
        rank, size = hvd.rank(), hvd.size()
        for dtype in (torch.float32, torch.bool, torch.bfloat16, torch.int64):
            mine = torch.full((rank, 2), bool(rank % 2), dtype=dtype)  # none on rank 0
            whole = hvd.allgather(mine)
            assert (whole.dtype, whole.shape) == (dtype, (size * (size - 1) // 2, 2))
            assert whole[:, 0].tolist() == [bool(r % 2) for r in range(size) for _ in range(r)]
        assert hvd.broadcast(torch.tensor([rank, 5]), root_rank=1).tolist() == [1, 5]
        value = torch.tensor(bool(rank))
        assert hvd.broadcast_(value, 1).item() is True
        assert value.item() is True
        assert hvd.broadcast_object({"from": rank}, root_rank=1, name="it") == {"from": 1}
        assert hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)]

    run(move, world)
