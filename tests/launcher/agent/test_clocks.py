"""Clocks that differ by more than a minute, which split a stock elastic world."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conftest import FAKETIME
from tests.launcher.agent.group import Group, kill
from tests.launcher.agent.place import Place, wait_until

pytestmark = pytest.mark.faketime

SKEW_S = 90


def test_clocks_that_differ_change_nothing(
    places: list[Place], group_of: Callable[[int], Group]
) -> None:
    for place, sign in ((places[0], "-"), (places[1], "+")):
        place.env |= {
            "LD_PRELOAD": FAKETIME,
            "FAKETIME": f"{sign}{SKEW_S}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    group = group_of(2)
    first, second = group.places
    told = {place.index: place.events()[0]["at"] - time.time() for place in group.places}
    assert told[0] < -SKEW_S / 2
    assert told[1] > SKEW_S / 2
    kill(second)
    wait_until(lambda: group.all_in([first], 1))
    again = Place(first.folder, first.archive, 1, incarnation=1)
    again.env = second.env
    group.start(again)
    wait_until(lambda: group.all_in([first, again], 2))
    group.finish([first, again])
    assert [world for world, _ in group.seen(first)] == [2, 1, 2]
    assert first.outcome()["restarts"] == {"membership": 2}
