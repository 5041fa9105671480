"""Measurements, rows, interleaving, and reports as plain data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import (
    NARROW,
    Goal,
    Measurement,
    Report,
    Row,
    estimate_ratio,
    interleave,
    parse_report,
)


def measured(*samples_s: float) -> Measurement:
    return Measurement(samples_s=samples_s)


def row(ours: float, theirs: float | None = None, goal: Goal | None = None, note: str = "") -> Row:
    return Row(
        benchmark="start",
        what="ours against theirs",
        ours=measured(ours),
        theirs=None if theirs is None else measured(theirs),
        goal=goal,
        note=note,
    )


def test_the_median_does_not_follow_one_slow_sample() -> None:
    measurement = measured(1.0, 1.2, 9.0)
    assert measurement.median_s == 1.2
    assert (measurement.min_s, measurement.max_s) == (1.0, 9.0)


@given(st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1))
def test_the_median_lies_between_the_fastest_and_the_slowest(samples_s: list[float]) -> None:
    measurement = measured(*samples_s)
    assert measurement.min_s <= measurement.median_s <= measurement.max_s


def test_a_measurement_can_be_told_per_part() -> None:
    assert measured(2.0, 4.0).per(2) == measured(1.0, 2.0)


def test_sides_are_measured_in_turn_after_rounds_that_do_not_count() -> None:
    order: list[str] = []

    def side(name: str, first: float) -> Callable[[], float]:
        def sample() -> float:
            order.append(name)
            return first + order.count(name)

        return sample

    ours, theirs = interleave(3, side("A", 0), side("B", 10))
    assert order == ["A", "B"] * 4
    assert ours.samples_s == (2, 3, 4)
    assert theirs.samples_s == (12, 13, 14)


@pytest.mark.parametrize(
    ("ours", "theirs", "goal", "ok"),
    [
        (1.0, 2.0, None, None),
        (1.0, 2.0, Goal(of="ratio", most=0.5), True),
        (1.1, 2.0, Goal(of="ratio", most=0.5), False),
        (1.1, None, Goal(of="ratio", most=0.5), None),
        (0.25, None, Goal(of="seconds", most=0.25), True),
        (0.26, 9.0, Goal(of="seconds", most=0.25), False),
    ],
)
def test_a_goal_is_reached_missed_or_cannot_be_told(
    ours: float, theirs: float | None, goal: Goal | None, ok: bool | None
) -> None:
    assert row(ours, theirs, goal).ok is ok


def test_the_ratio_is_ours_over_theirs() -> None:
    assert row(1.0, 2.0).ratio == 0.5
    assert row(1.0).ratio is None


def test_a_report_survives_its_way_through_json() -> None:
    report = Report(
        command="python -m benchmarks",
        machine="2 cores",
        repetitions=1,
        rows=(row(1.0, 2.0, Goal(of="ratio", most=0.5)), row(1.0, note="peer not installed")),
    )
    data = json.loads(json.dumps(report.to_jsonable()))
    assert parse_report(data) == report
    assert data["rows"][0]["ok"] is True
    assert data["rows"][0]["ours"]["median_s"] == 1.0


def test_the_interval_of_a_ratio_holds_it_and_narrows_with_the_samples() -> None:
    draw = random.Random(1)

    def widths(count: int) -> float:
        load = [draw.uniform(1.0, 1.5) for _ in range(count)]
        ours, theirs = ([each * factor * draw.gauss(1, 0.01) for each in load] for factor in (2, 1))
        low, high = estimate_ratio(tuple(ours), tuple(theirs))
        assert low <= 2 * (1 + NARROW)
        assert high >= 2 * (1 - NARROW)
        return high - low

    assert widths(400) < widths(6)


def test_one_pair_of_samples_says_nothing_about_a_ratio() -> None:
    assert estimate_ratio((1.0,), (1.0,)) == (0.0, float("inf"))


def test_equal_pairs_leave_no_doubt() -> None:
    assert estimate_ratio((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)) == (1.0, 1.0)


def test_an_interval_is_kept_in_the_report() -> None:
    measured_row = replace(row(1.0, 2.0), interval=(0.4, 0.6))
    report = Report(command="c", machine="m", repetitions=1, rows=(measured_row,))
    assert parse_report(json.loads(json.dumps(report.to_jsonable()))) == report
