"""DistributedOptimizer in two forked ranks, against one process on the whole batch."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fabric_train.horovod as hvd
from tests.fabric_train.horovod.test_operations import run

STEPS, BATCH, PASSES = 4, 8, 2
generator = torch.Generator().manual_seed(0)
DATA = torch.rand(STEPS, PASSES, 2 * BATCH, 5, generator=generator)


class Model(nn.Module):
    """Several buckets at a small threshold, and a layer that only some steps use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.sometimes = nn.Linear(3, 3)

    def forward(self, inputs: Tensor, use: bool = True) -> Tensor:
        outputs = self.layers(inputs)
        outputs = self.sometimes(outputs) if use else outputs
        return (outputs.double() * self.scale).square().mean().float()


def weights_of(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()]).numpy()


def build(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5, weight_decay=0.01)


def alone(passes: int = 1, factor: float = 1.0) -> np.ndarray:
    """One process on the batches of both ranks."""
    model = Model()
    optimizer = build(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            (model(DATA[step, number]) * factor).backward()
        optimizer.step()
    return weights_of(model)


def mine(step: int, number: int = 0) -> Tensor:
    half = slice(hvd.rank() * BATCH, (hvd.rank() + 1) * BATCH)
    return DATA[step, number, half]


def train(passes: int = 1, clip: bool = False, **options: Any) -> np.ndarray:
    model = Model()
    optimizer = hvd.DistributedOptimizer(
        build(model), model.named_parameters(), backward_passes_per_step=passes, **options
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            model(mine(step, number)).backward()
        if clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return weights_of(model)


def test_the_weights_are_those_of_one_process_on_both_ranks_batches():
    def all_ways() -> dict[str, np.ndarray]:
        fp16 = {"compression": hvd.Compression.fp16}
        ways: dict[str, dict[str, Any]] = {
            "plain": {},
            "clipped": {"clip": True},
            "predivided": {"gradient_predivide_factor": 2.0},
            "fp16": fp16,
            "fp16 predivided": {**fp16, "gradient_predivide_factor": 2.0},
            "passes": {"passes": PASSES},
            "sum": {"op": hvd.Sum},
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return {name: train(**options) for name, options in ways.items()}

    first, second = run(all_ways)
    for name, weights in first.items():
        assert np.array_equal(weights, second[name]), name
        expected = alone(
            passes=PASSES if name == "passes" else 1, factor=2.0 if name == "sum" else 1.0
        )
        np.testing.assert_allclose(weights, expected, atol=2e-3 if "fp16" in name else 1e-6)


def test_a_small_threshold_makes_many_buckets_that_are_sent_during_the_backward_pass():
    def watch() -> tuple[list[str], np.ndarray]:
        __import__("os").environ["HOROVOD_FUSION_THRESHOLD"] = "300"
        model = Model()
        optimizer = hvd.DistributedOptimizer(build(model), model.named_parameters())
        sent = []
        for step in range(STEPS):
            optimizer.zero_grad()
            model(mine(step)).backward()
            sent = [bucket.name for bucket in optimizer._buckets if bucket.sent is not None]
            assert len(sent) == len(optimizer._buckets)
            optimizer.step()
        return sent, weights_of(model)

    (sent, weights), _ = run(watch)
    assert len(sent) == 4
    np.testing.assert_allclose(weights, alone(), atol=1e-6)


def test_a_parameter_that_one_rank_did_not_use_counts_as_zero_there():
    def skip() -> list[float]:
        model = Model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        before = model.sometimes.bias.detach().clone()
        model(mine(0), use=hvd.rank() == 0).backward()
        own = model.sometimes.bias.grad
        optimizer.step()
        change = before - model.sometimes.bias.detach()
        return [change.tolist(), own.tolist() if own is not None else None]

    first, second = run(skip)
    assert first[0] == second[0]
    assert any(first[0])


def test_what_the_optimizer_was_is_kept():
    def keep() -> list[float]:
        model = nn.Linear(5, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        assert isinstance(wrapped, torch.optim.AdamW)
        again = torch.optim.lr_scheduler.StepLR(wrapped, 1, gamma=0.1)
        rates = []
        for step in range(2):
            wrapped.zero_grad(set_to_none=False)
            model(mine(step)).mean().backward()
            wrapped.step()
            scheduler.step()
            again.step()
            rates.append(wrapped.param_groups[0]["lr"])
        restored = wrapped.state_dict()
        wrapped.load_state_dict(restored)
        assert len(wrapped.state) == 2
        return rates

    assert run(keep)[0] == pytest.approx([0.005, 0.00025])


def test_misuse_is_told():
    def misuse() -> None:
        model = nn.Linear(5, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="op != Average"):
            hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
        optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
        loss = model(mine(0)).mean()
        loss.backward(retain_graph=True)
        with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss.backward"):
            optimizer.zero_grad()
        with pytest.raises(AssertionError, match=r"more than backward_passes_per_step times"):
            loss.backward()
        optimizer.synchronize()
        optimizer.step()
        optimizer.zero_grad()
        embedding = nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
        with pytest.raises(NotImplementedError, match="give sparse=False"):
            embedding(torch.tensor([1])).sum().backward()

    run(misuse)
