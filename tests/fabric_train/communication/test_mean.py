"""The weighted mean over ranks, in buckets."""

import hashlib

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fabric_train.communication import mean
from tests.fabric_train.forked import run_forked


def draw(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    shapes = [(3, 4), (7,), (), (5, 2), (1,)]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors.insert(2, torch.randn(6, generator=generator, dtype=torch.float64))
    tensors.append(torch.randn(4, 3, generator=generator).t())  # not contiguous
    return tensors


@pytest.mark.parametrize("bucket_bytes", [1, 64, 2**20])
def test_each_tensor_becomes_the_mean_to_the_same_bits_on_all_ranks(monkeypatch, bucket_bytes):
    monkeypatch.setattr(mean, "BUCKET_BYTES", bucket_bytes)

    def run(shares: list[float] | None) -> str:
        tensors = draw(dist.get_rank())
        mean.average(tensors, share=shares[dist.get_rank()] if shares else None)
        weights = shares or [1 / 3] * 3
        for number, tensor in enumerate(tensors):
            expected = sum(draw(rank)[number].double() * weights[rank] for rank in range(3))
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-6)
        return hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors)).hexdigest()

    for shares in (None, [0.5, 0.2, 0.3]):
        assert len(set(run_forked(run, 3, shares))) == 1


def test_no_bucket_is_larger_than_it_may_be(monkeypatch):
    monkeypatch.setattr(mean, "BUCKET_BYTES", 64)
    buckets = list(mean.cut_buckets(draw(0)))
    assert sum(len(bucket) for bucket in buckets) == len(draw(0))
    for bucket in buckets:
        assert len({tensor.dtype for tensor in bucket}) == 1
        assert len(bucket) == 1 or sum(t.numel() * t.element_size() for t in bucket) <= 64


def test_running_statistics_drift_with_the_weights_but_counters_and_frozen_weights_do_not():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    assert list(mean.find_weights(model)) == ["0.weight", "1.weight", "1.bias"]
    assert list(mean.find_statistics(model)) == ["1.running_mean", "1.running_var"]
