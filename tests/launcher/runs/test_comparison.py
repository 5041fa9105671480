"""What ``launcher compare`` measures of trainings, and what it says of their differences."""

from dataclasses import replace
from typing import Any

import pytest

from launcher.runs.comparison import HEAD, Curve, explain, measure_curve, render_causes, render_rows
from launcher.runs.ledger import LedgerEvent

CURVE = Curve(
    name="1",
    workers=1,
    goes_on_after=0,
    batch=12.0,
    samples_per_s=100.0,
    batch_norms=0,
    losses={12: 2.0, 24: -1.0, 36: 0.5},
    lrs={1: 0.1, 2: 0.05},
)
TWO = replace(CURVE, name="2", workers=2)


def tell(rank: int, name: str, at: float, **values: Any) -> LedgerEvent:
    told = {"rank": rank, **values}
    return LedgerEvent(
        name=name, node_index=0, incarnation=0, at=at, monotonic_s=at, values=told
    )  # fmt: skip


def trained(*, samples: int = 8) -> list[LedgerEvent]:
    """Two ranks, three steps; what rank 0 says of step 3 comes in two events."""
    events = []
    for rank in (0, 1):
        events += [
            tell(rank, "train-started", 1.0, world_size=2 + rank),
            tell(rank, "loaded", 2.0, step=4 + rank, batch_norms=3 + rank),
        ]
        for step, at, number in ((5, 10.0, 1), (6, 12.0, 1), (7, 15.0, 0.5), (7, 16.0, 0.5)):
            told = {"step": step, "lr": step / 10, "save_stall_s": 0.5 if at < 13 else 0.0}
            told |= {"samples": int(samples * number), "loss": step + rank * (1 - rank / 4)}
            events.append(tell(rank, "progress", at, **told))
    events.append(tell(1, "progress", 17.0, step=9, loss=1.0, samples=8, lr=1.0, save_stall_s=0.0))
    events.append(tell(1, "progress", 17.5, step=5, loss=None, samples=8, lr=1.0, save_stall_s=0.0))
    return events[::-1]


def test_a_curve_is_the_mean_over_ranks_at_the_samples_that_rank_0_counts():
    assert measure_curve("2", trained()) == Curve(
        name="2",
        workers=2,
        goes_on_after=4,
        batch=8.0,
        samples_per_s=16 / 5.5,
        batch_norms=3,
        losses={8: 5.375, 16: 6.375, 24: 7.375},
        lrs={5: 0.5, 6: 0.6, 7: 0.7},
    )
    by_steps = measure_curve("2", trained(samples=0))
    assert (by_steps.batch, list(by_steps.losses)) == (0.0, [1, 2, 3])
    assert measure_curve("2", [one for one in trained() if one.values["rank"]]) is None


def test_differences_are_relative_to_the_first_at_the_samples_that_both_reached():
    other = replace(CURVE, losses={48: 9.0, 24: -1.5, 12: 2.0})
    assert other.differences(CURVE) == {12: 0.0, 24: 0.5}
    zero = replace(CURVE, losses={12: 0.0})
    assert CURVE.differences(zero) == {12: pytest.approx(2e12)}


@pytest.mark.parametrize(
    ("first", "changes", "told"),
    [
        ({}, {"losses": {12: 2.0 + 5e-7}}, []),
        ({}, {"losses": {12: 2.0 + 7e-7}}, ["order of reduction: "]),
        ({}, {"losses": {12: 2.0, 24: -1.0001, 36: 0.9}}, ["order of reduction: "]),
        ({}, {"losses": {12: 2.0, 24: -1.001}}, ["different samples, ", "begins at 24 samples"]),
        ({}, {"losses": {48: 1.0}}, ["different samples, ", "begins at 0 samples"]),
        ({}, {"goes_on_after": 3}, ["checkpoints: 2 went on after step 3"]),
        ({"goes_on_after": 4}, {}, ["checkpoints: 1 went on after step 4"]),
        ({}, {"batch": 24.0}, ["effective batch: 12 samples in a step against 24"]),
        ({}, {"lrs": {1: 0.1, 2: 0.1}}, ["learning rate: 0.05 against 0.1 in step 2"]),
        ({}, {"lrs": {1: 0.2, 2: 0.1}}, ["learning rate: 0.1 against 0.2 in step 1"]),
        ({}, {"lrs": {3: 0.2}}, ["different samples, "]),
        ({}, {"batch_norms": 2}, ["BatchNorm: 2 by each process's own samples"]),
        ({}, {"batch_norms": 2, "workers": 1}, ["different samples, "]),
    ],
)
def test_losses_that_differ_are_explained(first, changes, told):
    other = replace(TWO, **{"losses": {12: 3.0}, **changes})
    causes = explain(replace(CURVE, **first), other)
    assert len(causes) == bool(told)
    assert all(words in causes[0] for words in told)


def test_the_table_has_a_row_for_each_with_its_share_of_the_first_ones_speed():
    third = replace(
        CURVE, name="4", workers=4, batch=6.5, samples_per_s=123456.0, losses={24: -1.5, 99: 7.0}
    )
    none = replace(CURVE, name="8", workers=8, losses={})
    assert render_rows([CURVE, replace(TWO, samples_per_s=150.0), third, none]) == [
        HEAD,
        ("1", "1", "12", "100", "100%", "0.5", "0.0e+00"),
        ("2", "2", "12", "150", "75%", "0.5", "0.0e+00"),
        ("4", "4", "6.5", "1.235e+05", "30864%", "7", "5.0e-01"),
        ("8", "8", "12", "100", "12%", "-", "-"),
    ]
    assert render_rows([replace(CURVE, samples_per_s=0.0)])[1][4] == "-"
    assert render_causes(
        [CURVE, TWO, replace(CURVE, name="4", goes_on_after=2, losses={12: 9.0})]
    ) == [
        "2 against 1: no difference but the rounding of a loss",
        "4 against 1: checkpoints: 4 went on after step 2",
    ]
