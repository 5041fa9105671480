"""Digits 5 to 9 for a network that has learned 0 to 4: frozen, then unfrozen, through faults."""

import pytest

from tests.fabric_train.forked import ForkedError
from tests.train.test_transfer import run

EXACT = "--reduction=exact"


@pytest.mark.parametrize("options", [(EXACT,), ("--strategy=fsdp",)], ids=["exact", "fsdp"])
def test_killed_while_frozen_and_while_unfrozen_it_ends_as_if_nothing_had_happened(
    tmp_path, options
):
    whole = run(tmp_path / "whole", 2, *options)
    folder = tmp_path / "killed"
    with pytest.raises(ForkedError, match="exit code -9"):
        run(folder, 2, *options, kill_in=4)
    with pytest.raises(ForkedError, match="exit code -9"):
        run(folder, 3, *options, kill_in=9)
    ending = run(folder, 1, *options)
    assert ending.metrics["resumed_from_step"] in (6, 8)
    losses = {step: whole.losses[step] for step in ending.losses}
    assert ending.losses == pytest.approx(losses, abs=1e-6 if EXACT in options else 1e-4)
    if EXACT in options:
        assert ending.metrics["weights_sha256"] == whole.metrics["weights_sha256"]
