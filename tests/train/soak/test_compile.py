"""``--compile``: the compiler is really asked, and a kill leaves no trace."""

import pytest
from torch import nn

from tests.fabric_train.forked import ForkedError
from tests.train.strategy_rows import Row, run
from train.config import TrainConfig
from train.workloads import digits

OPTIONS = ("--compile=true", "--workload=digits", "--checkpoint_every_steps=2")


def build_small(config: TrainConfig) -> nn.Module:
    """Nothing but layers of torch, as the shipped network is; each one costs seconds to compile."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.mark.cc
@pytest.mark.parametrize(("strategy", "world"), [("ddp", 1), ("ddp", 2), ("fsdp", 2)])
def test_a_compiled_training_ends_with_the_same_bits_through_a_kill(
    tmp_path, monkeypatch, strategy, world
):
    row, compiled = Row(name=strategy), tmp_path / "compiled"
    monkeypatch.setattr(digits, "build_model", build_small)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    whole = run(row, world, tmp_path / "whole", options=OPTIONS)
    assert list(compiled.rglob("*.so")), "nothing was compiled"
    with pytest.raises(ForkedError, match="exit code -9"):
        run(row, world, tmp_path / "killed", kill_in=5, options=OPTIONS)
    again = run(row, world, tmp_path / "killed", options=OPTIONS)
    assert again.metrics["resumed_from_step"] in (2, 4)
    assert again.losses == {step: whole.losses[step] for step in again.losses}
    assert again.metrics["weights_sha256"] == whole.metrics["weights_sha256"]
    # Its names and shapes are those of one that is not compiled, and another may go on from it.
    plain = run(row, world, tmp_path / "killed", steps=7, options=("--compile=false", *OPTIONS[1:]))
    assert plain.metrics["resumed_from_step"] == 6
