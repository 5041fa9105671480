"""What each second of a training counts as, one start and event after the other."""

from typing import Any

import pytest

from launcher.contract.reports.goodput import Tally

Events = list[tuple[Any, ...]]
FIRST: Events = [
    (2, "train-started"), (5, "loaded", 0), (6, "first-step", 1), (16, "progress", 11, 2.5),
]  # fmt: skip
SPENT = {"starting": 2, "load": 3, "first step": 1, "productive": 7.5, "save stall": 2.5}


def tally(events: Events, since: float = 0) -> tuple[dict[str, float], int]:
    """The classes that have seconds, and the lost steps."""
    found = Tally(since)
    for at, name, *rest in events:
        step, stall_s = (*rest, None, None)[:2]
        if name == "train-started":
            found.begin(at)
        elif name == "heals":
            found.heal()
        else:
            found.add(name, at, {"step": step, "save_stall_s": stall_s})
    return {name: spent for name, spent in found.seconds.items() if spent}, found.lost_steps


@pytest.mark.parametrize(
    ("events", "spent", "lost"),
    [
        pytest.param([], {}, 0, id="nothing"),
        pytest.param(FIRST, SPENT, 0, id="training"),
        pytest.param([*FIRST, (17, "saved", 11)], SPENT, 0, id="an event that begins no phase"),
        pytest.param(
            [*FIRST, (20, "trained", 15), (21, "train-ended", 15)],
            SPENT | {"productive": 11.5, "finish": 1}, 0, id="the end",
        ),
        pytest.param(
            [*FIRST, (18, "progress", 13, 9.0)], SPENT | {"save stall": 4.5}, 0,
            id="no longer stall than there was time",
        ),
        pytest.param(
            [*FIRST, (18, "progress", None)], SPENT | {"productive": 9.5}, 0, id="no step",
        ),
        pytest.param(
            [*FIRST, (15, "progress", 12)], SPENT, 0, id="a clock that went back",
        ),
        pytest.param(
            [*FIRST, (20, "train-started"), (21, "loaded", 5), (22, "first-step", 6),
             (32, "progress", 16), (33, "trained", 17)],
            {"starting": 6, "load": 4, "first step": 2, "productive": 13.5, "save stall": 2.5,
             "rework": 5}, 6, id="a second start makes steps again",
        ),
        pytest.param(
            [*FIRST, (20, "train-started"), (21, "loaded", 0), (22, "first-step", 1)],
            {"starting": 6, "load": 4, "first step": 2, "productive": 7.5, "save stall": 2.5}, 1,
            id="a second start begins anew",
        ),
        pytest.param(
            [*FIRST, (20, "train-started"), (21, "loaded", 5), (22, "first-step", 6),
             (24, "progress", 8, 0.5), (25, "train-started"), (26, "loaded", 8),
             (27, "first-step", 9), (28, "progress", 10), (29, "progress", 12)],
            {"starting": 7, "load": 5, "first step": 3, "productive": 8, "save stall": 3,
             "rework": 3}, 6, id="a third start knows the highest step of both",
        ),
        pytest.param(
            [*FIRST, (19, "heals"), (20, "loaded", 13), (21, "first-step", 14),
             (23, "progress", 16)],
            SPENT | {"productive": 11, "healing": 3.5}, 0, id="a heal, after two unwritten steps",
        ),
        pytest.param(
            [*FIRST[:3], (7, "heals"), (9, "loaded", 2), (10, "first-step", 3), (11, "heals"),
             (12, "loaded", 3), (13, "first-step", 4), (15, "progress", 6)],
            {"starting": 2, "load": 3, "first step": 1, "healing": 7, "productive": 2}, 0,
            id="two heals before any line of progress",
        ),
        pytest.param(
            [*FIRST, (17, "heals"), (18, "loaded", 10), (19, "first-step", 11)],
            SPENT | {"healing": 3}, 1, id="a heal without those who made the last step",
        ),
        pytest.param(
            [*FIRST, (17, "heals"), (18, "train-started"), (19, "loaded", 11),
             (20, "first-step", 12)],
            SPENT | {"starting": 4, "load": 4, "first step": 2}, 0,
            id="a start after a heal that failed",
        ),
    ],
)  # fmt: skip
def test_a_second_counts_once(events, spent, lost):
    assert tally(events) == (spent, lost)


def test_what_was_before_the_first_agent_does_not_count():
    assert tally([(2, "train-started"), (3, "loaded", 0)], since=1.5)[0]["starting"] == 0.5
    assert "starting" not in tally([(2, "train-started")], since=3)[0]
