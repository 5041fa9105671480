"""local_sgd and diloco as strategies: equal to DDP, resumed, resized, and their traffic."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fabric_train.checkpointing.saver import Saver
from fabric_train.errors import InputError
from fabric_train.sampling.sampler import plan_rank_shards
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import RankBatch, Strategy
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.one_process import place_here

SHARDS, BATCH, WIDTH = 6, 4, 8
BOTH = ["local_sgd", "diloco"]


def build_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        # Without a bias before BatchNorm, whose gradient would be nothing but rounding.
        first = nn.Linear(WIDTH, 16, bias=False)
        return nn.Sequential(first, nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def adamw(weights) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01)


def draw(step: int, shard: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + shard)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, inputs[:, :3].tanh()


class Training:
    """A loop on a strategy, with checkpoints if there is a folder; ``losses`` by step."""

    def __init__(
        self,
        strategy: Strategy,
        build_optimizer=adamw,
        folder: Path | None = None,
        shards: int = SHARDS,
    ) -> None:
        self.strategy = strategy
        strategy.setup(build_model(), build_optimizer, place_here(), virtual_shards=shards)
        self.shards = plan_rank_shards(shards, strategy.replica, strategy.replicas)
        self.losses: dict[int, float] = {}
        self.said: list[str] = []
        self.step = 0
        self.saver = Saver(folder, say=self.said.append) if folder else None
        if self.saver:
            manifest = self.saver.resume(strategy.bare, strategy.optimizer, strategy)
            self.step = manifest.step if manifest else 0

    def train(self, stop: int, *, kill_at: int | None = None, save_every: int = 3) -> None:
        while self.step < stop:

            def begin(shard: int) -> None:
                if self.step == kill_at and shard == self.shards[-1] and dist.get_rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            loss = self.strategy.run_step(
                RankBatch(
                    shards=self.shards,
                    batches=iter([draw(self.step, shard) for shard in self.shards]),
                    loss=nn.functional.mse_loss,
                    begin=begin,
                )
            )
            self.strategy.step(self.step)
            self.losses[self.step] = loss.item()
            self.step += 1
            if self.saver and self.step % save_every == 0:
                self.save()

    def save(self) -> None:
        saved = self.saver.save(
            self.step,
            self.strategy.bare,
            self.strategy.optimizer,
            block=True,
            strategy=self.strategy,
        )
        assert saved is None or saved.path, saved

    def weights(self) -> dict[str, Tensor]:
        """The weights alone: statistics of BatchNorm differ, as each shard is a batch."""
        return {
            name: tensor
            for name, tensor in self.strategy.gather_weights().items()
            if "running" not in name and "num_batches" not in name
        }


def train(name: str, options: Mapping[str, Any], build_optimizer, steps: int) -> dict[str, Tensor]:
    training = Training(make_strategy(name, options), build_optimizer)
    training.train(steps)
    return training.weights()


def test_the_warm_up_is_ddp_with_any_optimizer():
    alone = train("ddp", {}, adamw, 6)
    for name in BOTH:
        options = {"warmup_steps": 6}
        for weights in run_forked(train, 2, name, options, adamw, 6):
            for key, weight in weights.items():
                torch.testing.assert_close(weight, alone[key], rtol=1e-4, atol=1e-5)


def test_ranks_drift_apart_between_meetings_and_tests_see_their_mean():
    def run() -> tuple[Tensor, Tensor, Tensor]:
        training = Training(make_strategy("local_sgd", {"every": 4}))
        training.train(6)
        own = training.strategy.bare[0].weight.detach().clone()
        mean = training.strategy.gather_weights()["0.weight"]
        return own, mean, training.strategy.bare[0].weight.detach()

    (first, mean, after), (second, same, _) = run_forked(run, 2)
    assert not torch.equal(first, second)
    torch.testing.assert_close(mean, (first + second) / 2)
    assert torch.equal(mean, same)
    # And the rank goes on with its own.
    assert torch.equal(first, after)


# -- traffic -----------------------------------------------------------------------------------


def count_bytes(name: str, options: Mapping[str, Any], steps: int) -> int:
    """Bytes that a rank gives to collectives in these steps, as torch's flight recorder saw."""
    training = Training(make_strategy(name, options))
    training.train(2)  # DDP orders its buckets after its first step
    before = sum_sizes()
    training.train(2 + steps)
    return sum_sizes() - before


def sum_sizes() -> int:
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    sizes = {"Float": 4, "Double": 8, "Long": 8, "Int": 4, "Byte": 1}
    total = 0
    for entry in trace.get("entries", []):
        for shape, kind in zip(entry["input_sizes"], entry["input_dtypes"], strict=True):
            total += torch.Size(shape).numel() * sizes[kind]
    return total


RECORDED = {"TORCH_FR_BUFFER_SIZE": "2000"}


@pytest.mark.parametrize("name", BOTH)
def test_it_sends_an_eighth_of_what_ddp_sends(name):
    weights = sum(each.numel() for each in build_model().parameters()) * 4
    buffers = 2 * 16 * 4
    (ddp, _) = run_forked(count_bytes, 2, "ddp", {}, 16, environ=RECORDED)
    assert ddp == 16 * weights
    (sent, _) = run_forked(count_bytes, 2, name, {"every": 8}, 16, environ=RECORDED)
    assert sent == 2 * (weights + buffers)


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("local_sgd", {"every": 0}, "every=0 of local_sgd is less than 1"),
        ("local_sgd", {"warmup_steps": -1}, "warmup_steps=-1 of local_sgd is less than 0"),
        ("diloco", {"outer_momentum": -0.5}, "outer_momentum=-0.5 of diloco is less than 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options, message):
    with pytest.raises(InputError) as caught:
        make_strategy(name, options).check(None, "cpu")
    assert message in str(caught.value)
