"""deepspeed: refused where it is not installed; where it is, equal to one process."""

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from fabric_train.errors import DivergedError, InputError
from fabric_train.strategies import make_strategy
from fabric_train.strategies.strategy import Strategy
from tests.fabric_train.forked import run_forked, world_of
from tests.fabric_train.strategies import one_process as one

WORLD = world_of(2)
STEPS = 4


@pytest.fixture(scope="module")
def package() -> Iterator[None]:
    """Imports it once, for all ranks that are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        pytest.importorskip("deepspeed")
        yield


# -- what it refuses ---------------------------------------------------------------------------


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(InputError, match=r"(?s)deepspeed is not installed.*pip install deepspeed"):
        make_strategy("deepspeed").check(WORLD, "cpu")


def test_stage_3_is_fsdps():
    with pytest.raises(InputError, match=r"(?s)stage=3 of deepspeed.*--strategy fsdp"):
        make_strategy("deepspeed", {"stage": 3}).check(WORLD, "cpu")
    with pytest.raises(InputError, match=r"(?s)stage=0 of deepspeed.*stage 2"):
        make_strategy("deepspeed", {"stage": 0}).check(WORLD, "cpu")


def test_one_process_without_a_group_is_refused(package):
    make_strategy("deepspeed").check(WORLD, "cpu")
    with pytest.raises(InputError, match=r"(?s)started alone.*torchrun --nproc-per-node=1"):
        make_strategy("deepspeed").check(None, "cpu")


def test_a_weight_of_another_type_is_refused_with_its_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    with pytest.raises(InputError, match=r"1\.weight is torch\.bfloat16"):
        make_strategy("deepspeed").setup(model, one.build_adamw, one.place_here())


def test_with_bf16_the_passes_round_and_weights_and_gradients_do_not(package):
    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    def run(strategy: Strategy) -> tuple[list[float], set[torch.dtype], set[torch.dtype]]:
        strategy.precision = "bf16-mixed"
        model, _ = one.set_up(strategy)
        outputs: set[torch.dtype] = set()
        model.register_forward_hook(lambda module, _, output: outputs.add(output.dtype))
        losses = []
        for step in range(STEPS):
            batch = replace(one.cut_batch(strategy, step), autocast=autocast)
            batch = replace(batch, loss=lambda out, wanted: one.mean_loss(out.float(), wanted))
            losses.append(one.average(strategy, strategy.run_step(batch)))
            strategy.step(step)
        return losses, outputs, {each.dtype for each in strategy.gather_weights().values()}

    alone = run(Strategy())
    for losses, *types in run_forked(lambda: run(make_strategy("deepspeed")), 2):
        assert losses == pytest.approx(alone[0], abs=5e-3)
        assert types == [*alone[1:]] == [{torch.bfloat16}, {torch.float32}]


def test_a_step_that_deepspeed_leaves_out_ends_the_training(package):
    def work() -> str:
        strategy = make_strategy("deepspeed")
        one.set_up(strategy)
        batch = replace(one.cut_batch(strategy, 0), loss=lambda out, _: out.sum() * torch.inf)
        strategy.run_step(batch)
        with pytest.raises(DivergedError) as caught:
            strategy.step(0)
        return str(caught.value)

    assert all("a gradient is not finite in step 1" in message for message in run_forked(work, 2))
