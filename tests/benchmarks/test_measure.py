"""Measurements, rows and what they say about goals, and reports as plain data."""

import math
from dataclasses import replace

import pytest

from benchmarks.measure import JSON, Goal, Measurement, Report, Reports, Row


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


@pytest.mark.parametrize(
    ("ours", "theirs", "goal", "ok"),
    [
        (1.0, 2.0, None, None),
        (1.0, 2.0, Goal(of="ratio", most=0.5), True),
        (1.1, 2.0, Goal(of="ratio", most=0.5), False),
        (1.1, None, Goal(of="ratio", most=0.5), None),
        (0.0, 0.0, Goal(of="ratio", most=0.5), None),
        (0.25, None, Goal(of="seconds", most=0.25), True),
        (0.26, 9.0, Goal(of="seconds", most=0.25), False),
    ],
)
def test_a_goal_is_reached_missed_or_cannot_be_told(ours, theirs, goal, ok):
    assert row(ours, theirs, goal).ok is ok


@pytest.mark.parametrize(
    ("interval", "ok", "is_open"),
    [
        ((0.4, 0.49), True, False),
        ((0.4, 0.5), True, False),
        ((0.4, 0.51), None, True),
        ((0.5, 0.6), None, True),
        ((0.51, 0.6), False, False),
        ((0.0, math.inf), None, True),
    ],
)
def test_a_goal_within_the_interval_is_neither_reached_nor_missed(interval, ok, is_open):
    middle = sum(interval) / 2
    measured_row = replace(row(middle, 1.0, Goal(of="ratio", most=0.5)), interval=interval)
    assert (measured_row.ok, measured_row.is_open) == (ok, is_open)


def test_a_goal_in_seconds_is_judged_by_the_interval_of_the_median():
    seconds = row(0.2, 9.0, Goal(of="seconds", most=0.25))
    assert replace(seconds, interval=(0.0, math.inf), median_interval=(0.1, 0.24)).ok
    assert replace(seconds, interval=(0.02, 0.03), median_interval=(0.1, 0.3)).is_open


@pytest.mark.parametrize(
    ("interval", "is_sure"),
    [
        ((0.35, 0.44), True),  # 0.09 wide, 0.1 from the goal
        ((0.35, 0.46), False),  # on one side, but not narrow enough to rely on
        ((0.4, 0.4), True),
        ((0.0, math.inf), False),
    ],
)
def test_a_row_is_sure_when_its_interval_is_narrower_than_the_distance_to_its_goal(
    interval, is_sure
):
    judged = row(0.4, 1.0, Goal(of="ratio", most=0.5))
    assert replace(judged, interval=interval).is_sure is is_sure
    assert replace(judged, interval=interval, goal=None).is_sure


def test_a_report_survives_its_way_through_json():
    report = Report(
        benchmark="start",
        command="make bench ARGS=start",
        machine="2 cores",
        load=0.5,
        taken="2026-01-02",
        rows=(
            replace(row(1.0, 2.0, Goal(of="ratio", most=0.5)), interval=(0.4, 0.5)),
            replace(row(1.0, note="peer not installed"), interval=(0.0, math.inf)),
            replace(row(1.0, goal=Goal(of="seconds", most=2)), median_interval=(0.9, 1.1)),
        ),
    )
    assert JSON.validate_json(JSON.dump_json(Reports(reports=(report,)))).reports == (report,)
