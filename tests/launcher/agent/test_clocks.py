"""Clocks that differ by more than a minute, which split a stock elastic world."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.agent.group import Group, kill
from tests.launcher.agent.place import Place, wait_until

pytestmark = pytest.mark.cc

SKEW_S = 90


@pytest.fixture
def skewed_clock(tmp_path: Path) -> Path:
    """A library that shifts the wall clock of the process it is preloaded into."""
    source, library = Path(__file__).with_name("skewed_clock.c"), tmp_path / "skewed_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


def test_clocks_that_differ_change_nothing(
    places: list[Place], group_of: Callable[[int], Group], skewed_clock: Path
) -> None:
    for place, skew_s in ((places[0], -SKEW_S), (places[1], SKEW_S)):
        place.env |= {"LD_PRELOAD": str(skewed_clock), "CLOCK_SKEW_S": str(skew_s)}
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
