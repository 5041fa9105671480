"""What a run's time went to, from events written out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.contract.reports.goodput import CLASSES
from launcher.runs.goodput import Goodput, Point, measure_goodput
from launcher.runs.ledger import LedgerEvent


def event(at: float, name: str, values: dict[str, Any]) -> LedgerEvent:
    return LedgerEvent(
        name=name, node_index=0, incarnation=0, at=at, monotonic_s=at, values=values
    )  # fmt: skip


def train(attempt: int, *events: tuple[float, str, dict[str, Any]]) -> list[LedgerEvent]:
    return [event(at, name, {"attempt": attempt, **values}) for at, name, values in events]


def agents(*times: float) -> list[LedgerEvent]:
    return [event(at, "anything", {}) for at in times]


def progress(at: float, step: int, stall_s: float = 0.0) -> tuple[float, str, dict[str, Any]]:
    return at, "progress", {"step": step, "loss": 1 / step, "save_stall_s": stall_s}


QUIET = train(
    0,
    (3.0, "train-started", {"world_size": 2}),
    (5.0, "loaded", {"step": 0}),
    (6.0, "first-step", {"step": 1}),
    progress(16.0, 11, stall_s=1.5),
    (16.5, "saved", {"step": 11}),
    (26.0, "trained", {"step": 21, "loss": 0.1, "save_stall_s": 0.0}),
    (27.0, "train-ended", {"step": 21}),
)


def measure(events: list[LedgerEvent], finished_at: float, *alive: float) -> Goodput:
    found = measure_goodput(events, agents(*alive), 0.0, finished_at)
    assert found is not None
    return found


def nonzero(found: Goodput) -> dict[str, float]:
    return {name: round(spent, 6) for name, spent in found.seconds.items() if spent}


def test_a_quiet_runs_time_has_a_class_for_every_second():
    assert nonzero(measure(QUIET, 28.0, 1.0, 27.5)) == {
        "productive": 18.5,
        "first step": 1.0,
        "load": 2.0,
        "save stall": 1.5,
        "starting": 2.0,
        "finish": 1.0,
        "idle": 2.0,
    }


FAULTY = [
    *train(
        0,
        (1.0, "train-started", {"world_size": 4}),
        (2.0, "loaded", {"step": 0}),
        (3.0, "first-step", {"step": 1}),
        progress(13.0, 11),
    ),
    *train(
        1,
        (15.0, "train-started", {"world_size": 3}),
        (16.0, "loaded", {"step": 5}),
        (17.0, "first-step", {"step": 6}),
        progress(27.0, 16),
        (28.0, "trained", {"step": 17, "loss": 0.1, "save_stall_s": 0.0}),
        (28.0, "train-ended", {"step": 17}),
    ),
]


def test_steps_that_a_lost_start_had_made_are_rework():
    found = measure(FAULTY, 28.0, 0.0, 14.0)
    assert nonzero(found) == {
        "productive": 16.0,
        "first step": 2.0,
        "load": 2.0,
        "rework": 5.0,
        "starting": 3.0,
    }
    assert (found.starts, found.lost_steps, found.failures) == (2, 6, (13.0,))
    assert found.share == pytest.approx(16 / 28)


def test_the_world_is_told_over_time_with_none_between_two_starts():
    assert measure(FAULTY, 30.0).world == ((0.0, 0), (1.0, 4), (13.0, 0), (15.0, 3), (28.0, 0))


def test_points_have_the_samples_that_led_to_them_without_what_was_lost():
    told = {"loss": 0.5, "lr": 0.1, "samples": 100}
    events = [
        *train(
            0,
            (1.0, "train-started", {"world_size": 4}),
            (2.0, "loaded", {"step": 0}),
            (3.0, "planned", {"step": 0, "until": 50}),
            (3.0, "first-step", {"step": 1}),
            (13.0, "progress", {"step": 11, **told}),
            (14.5, "saved", {"step": 11}),
            (18.0, "progress", {"step": 21, **told, "loss": None}),
        ),
        *train(
            1,
            (20.0, "train-started", {"world_size": 2}),
            (21.0, "loaded", {"step": 11}),
            (21.5, "planned", {"step": 11, "until": 40}),
            (22.0, "first-step", {"step": 12}),
            (25.0, "trained", {"step": 16, **told, "samples": 44}),
            (26.0, "trained", {"step": 16, "lr": 0.2}),
        ),
    ]
    found = measure(events, 30.0)
    assert found.points == (
        Point(13.0, 11, 110, 0.5, 0.1, 10.0, 4),
        Point(18.0, 21, 210, None, 0.1, 20.0, 4),
        Point(25.0, 16, 165, 0.5, 0.1, 14.67, 2),
        Point(26.0, 16, 165, None, 0.2, 0.0, 2),
    )
    assert (found.saves, found.until, found.failures) == (((14.5, 0),), 40, (18.0,))
    assert (found.share, found.to_jsonable()["share"]) == (pytest.approx(15 / 30), 0.5)
    assert measure(events[:2], 30.0).until == 0
    early = measure_goodput(events, (), 5.0, 4.0)
    assert (early.wall_s, early.share) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "values", "is_sound"),
    [
        ("progress", {"step": 12, "loss": None}, True),
        ("saved", {}, True),
        ("progress", {"step": None}, False),
        ("trained", {}, False),
        ("progress", {"step": "12"}, False),
        ("progress", {"step": 12, "loss": float("nan")}, False),
        ("progress", {"step": 12, "save_stall_s": float("inf")}, False),
        ("saved", {"lr": [1]}, False),
    ],
)
def test_an_event_without_numbers_where_they_belong_is_left_out(name, values, is_sound):
    odd = train(0, (26.5, name, values))
    assert (measure([*QUIET, *odd], 28.0) != measure(QUIET, 28.0)) == is_sound


def test_agents_count_as_starting_until_a_training_begins():
    for alive, starting_s in (((), 0.0), ((2.0,), 1.0), ((0.5, 2.0, 5.5), 3.5), ((5.5, 9.0), 1.0)):
        found = measure([*QUIET[:2], *train(1, (6.0, "train-started", {}))], 30.0, *alive)
        assert found.seconds["starting"] == pytest.approx(starting_s), alive


def test_a_start_that_writes_on_after_its_successor_began_is_cut_there():
    late = train(0, progress(20.0, 99))
    found = measure([*FAULTY, *late], 28.0)
    assert sum(found.seconds.values()) == pytest.approx(28.0)
    assert found.seconds["first step"] == 2.0


def test_without_a_ledger_of_the_training_there_is_no_goodput():
    assert measure_goodput([], agents(1.0), 0.0, 9.0) is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.floats(0, 100),
            st.sampled_from(["train-started", "loaded", "first-step", "progress", "trained"]),
            st.integers(0, 50),
            st.floats(0, 5),
        )
    ),
    st.lists(st.floats(0, 100)),
)
def test_whatever_the_events_the_classes_add_up_to_the_wall_time(raw, alive):
    events = [
        event
        for attempt, at, name, step, stall_s in raw
        for event in train(attempt, (at, name, {"step": step, "save_stall_s": stall_s}))
    ]
    found = measure_goodput(events, agents(*alive), 0.0, 100.0)
    if found is not None:
        assert set(found.seconds) == set(CLASSES)
        assert all(spent >= -1e-6 for spent in found.seconds.values()), found.seconds
        assert sum(found.seconds.values()) == pytest.approx(100.0)
