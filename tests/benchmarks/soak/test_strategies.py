"""The peers of the strategies do the same work, and the formulas say what is sent."""

import pytest

from benchmarks import strategy_ranks
from benchmarks.strategies import FORMULAS, TENSOR, WEIGHTS
from benchmarks.strategy_ranks import take_pair

COUNTERS = 20_000
"""Bytes of a step beside the strategy's own: what ranks tell each other about stops."""
CASES = [
    (name, nproc)
    for name in FORMULAS
    for nproc in (1, 2, 4)
    if name != "fsdp+tp" or nproc >= TENSOR
]


@pytest.mark.parametrize(("name", "nproc"), CASES)
def test_both_sides_have_equal_losses_and_send_what_the_formula_says(name, nproc, monkeypatch):
    monkeypatch.setattr(strategy_ranks, "ROUNDS", 1)
    pair = take_pair(name, nproc)
    ours, theirs = pair["ours"], pair["theirs"]
    # The first Q of powersgd is drawn at random.
    tolerance = 1e-2 if name == "powersgd" else 1e-5
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=tolerance)
    expected = FORMULAS[name](nproc)
    assert ours["sent"] == pytest.approx(expected, rel=0.01, abs=COUNTERS)
    # Plain code sends small weights one by one.
    assert theirs["sent"] == pytest.approx(expected, rel=0.03, abs=COUNTERS)
    assert min(ours["memory"], theirs["memory"]) > 4 * WEIGHTS / nproc
    assert ours["step_s"] > 0
