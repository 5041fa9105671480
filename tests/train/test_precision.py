"""16-mixed and bf16-true under each strategy that takes them, through a kill and a resize."""

from __future__ import annotations

import pytest

from fabric_train.precision import LossScaler
from tests.fabric_train.forked import ForkedError
from tests.train.strategy_rows import ONE, ROWS, run

OFTEN = ("--checkpoint_every_steps=2",)


def scale_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps' gradients overflow, so that the scale falls."""
    real = LossScaler.__init__

    def begin(scaler: LossScaler, device: str) -> None:
        real(scaler, device)
        scaler._init_scale = 2.0**28

    monkeypatch.setattr(LossScaler, "__init__", begin)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-true"])
@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_x(row, precision, tmp_path, monkeypatch):
    scale_too_much(monkeypatch)
    options = (f"--precision={precision}", *OFTEN)
    alone = run(ONE, 1, tmp_path / "alone", options=options)
    whole = run(row, row.world, tmp_path / "whole", options=options)
    print("skipped", alone.metrics.get("skipped_steps"), whole.metrics.get("skipped_steps"))
    print("diff", max(abs(whole.losses[s] - alone.losses[s]) for s in alone.losses))
    with pytest.raises(ForkedError, match="exit code -9"):
        run(row, row.world, tmp_path / "k", kill_in=5, options=options)
    ending = run(row, row.world, tmp_path / "k", options=options)
    print("resumed", ending.metrics["resumed_from_step"], max(abs(whole.losses[s] - ending.losses[s]) for s in ending.losses))
