"""16-mixed and bf16-true, under each strategy that takes them, through a kill and a resize."""

import shutil

import pytest

from fabric_train.strategies import make_strategy
from tests.fabric_train.forked import ForkedError
from tests.train.strategy_rows import Row, run
from tests.train.test_precision import too_large_a_scale

EXACT = ("--reduction=exact",)
ROWS = (
    Row(name="ddp"),
    Row(name="ddp", options=EXACT),
    Row(name="ddp2"),
    Row(name="fsdp"),
    Row(name="tp"),
    Row(name="fsdp+tp", worlds=(2, 4)),
    Row(name="pipeline", options=("--strategy_options.microbatches=4",)),
    Row(name="bagua:gradient_allreduce"),
)


@pytest.mark.parametrize(
    ("row", "precision"),
    [
        pytest.param(row, precision, id=f"{row.id}-{precision}")
        for row in ROWS
        for precision in ("16-mixed", "bf16-true")
    ],
)
def test_a_kill_and_a_resize_leave_no_trace_in_losses_and_scale(tmp_path, row, precision):
    options = (f"--precision={precision}", "--checkpoint_every_steps=2", "--checkpoint_async=false")
    whole = run(row, row.world, tmp_path / "whole", options=options)
    if precision == "16-mixed":
        assert 0 < whole.metrics["skipped_steps"] < 6
    with pytest.raises(ForkedError, match="exit code -9"):
        run(row, row.world, tmp_path / "killed", kill_in=5, options=options)
    shutil.copytree(tmp_path / "killed", tmp_path / "copy", symlinks=True)

    again = run(row, row.world, tmp_path / "killed", options=options)
    assert again.metrics["resumed_from_step"] == 4
    assert again.losses == {step: whole.losses[step] for step in again.losses}
    for same in ("weights_sha256", "skipped_steps"):
        assert again.metrics[same] == whole.metrics[same]

    # Fewer: where DDP's mean is over more processes, gradients are larger before it, and overflow.
    world = 3 if row.options == EXACT else min(row.worlds)
    if world != row.world and make_strategy(row.name).can_resize:
        other = run(row, world, tmp_path / "copy", options=options)
        tolerance = 1e-6 if row.options == EXACT else 2e-3
        expected = {step: whole.losses[step] for step in other.losses}
        assert other.losses == pytest.approx(expected, abs=tolerance)
        assert other.metrics["skipped_steps"] == whole.metrics["skipped_steps"]
        if row.options == EXACT:
            assert other.metrics["weights_sha256"] == whole.metrics["weights_sha256"]
