"""Nodes are lost, freeze, wake and come, and the workers of the others go on as they are."""

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launcher.agent.conftest import end
from tests.launcher.agent.group import kill, tree
from tests.launcher.agent.healing import HealingGroup, train_alone
from tests.launcher.agent.place import LIMIT_S, Place


@dataclass(frozen=True, kw_only=True)
class Story:
    """The group after its end, and how the training ended."""

    group: HealingGroup
    last_step: int
    told: set[str]
    alone: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("heal")
    group = HealingGroup([Place(folder, archive, index) for index in range(3)])
    try:
        last, told = live(group)
        yield Story(group=group, last_step=last, told=told, alone=train_alone(folder / "1", last))
    finally:
        for place in group.places:
            end(place)


def live(group: HealingGroup) -> tuple[int, set[str]]:
    first, second, third = group.places
    group.start_all()
    group.make_steps()
    kill(third)
    group.wait_for(first, second)
    group.make_steps()
    third = group.start_again(third)
    group.wait_for(first, second, third)
    group.make_steps()

    frozen = tree(second)
    for process in frozen:
        process.suspend()
    group.wait_for(first, third)
    group.make_steps()
    for process in frozen:
        process.resume()
    group.wait_for(first, second, third)
    group.make_steps()

    # The coordinator runs beside it.
    kill(first)
    group.wait_for(second, third)
    group.make_steps()
    back = group.start_again(first)
    group.wait_for(back, second, third)
    group.make_steps()
    return group.finish_soon(back, second, third)


def test_no_survivor_starts_again_and_no_step_is_left_out_or_made_twice(story):
    for index in range(3):
        steps = story.group.steps(index)
        if index != 1 or not restarts(story.group.places[1]):
            pids = list(dict.fromkeys(step.pid for step in steps))
            assert len(pids) == (2, 1, 2)[index], f"node {index}"
        for one, next_one in pairwise(steps):
            if one.pid == next_one.pid and index != 1:
                assert next_one.number == one.number + 1
    made = {step.number for index in range(3) for step in story.group.steps(index)}
    assert made == set(range(1, story.last_step + 1))


def test_the_weights_are_those_of_the_undisturbed_training(story):
    assert story.told == {story.alone}


def test_no_restart_is_used_up(story):
    places = story.group.places
    events = [event for place in places for event in place.events()]
    starts = [event for event in events if event["event"] == "workers-started"]
    assert len(starts) == 5 + len(restarts(places[1]))
    assert not any(restarts(place) for place in places if place is not places[1])
    assert all(place.outcome()["restarts"] == {} for place in places[3:])


def restarts(place: Place) -> list[dict[str, Any]]:
    """One at most, of the node that was frozen: where gloo has forgotten to wake its worker."""
    told = [event for event in place.events() if event["event"] == "restart"]
    assert [event["cause"] for event in told] in ([], ["membership"])
    return told


def test_each_heal_is_told_with_its_cause_and_its_pause(story):
    events = story.group.places[1].events()
    causes = [event["cause"] for event in events if event["event"] == "met-again"]
    assert causes[:2] == ["lost", "joined"]
    healed = [event for event in events if event["event"] == "healed"]
    assert len(healed) >= 4
    assert all(event["paused_s"] > 0 for event in healed)


def freeze_one_of_two(places: list[Place]) -> tuple[HealingGroup, list[psutil.Process]]:
    """The other goes on alone."""
    first, second, _ = places
    group = HealingGroup(places[:2])
    group.start_all()
    group.make_steps()
    frozen = tree(second)
    for process in frozen:
        process.suspend()
    group.wait_for(first)
    return group, frozen


def test_one_that_was_frozen_gets_the_state_of_the_only_one_that_went_on(places):
    first, second, _ = places
    group, frozen = freeze_one_of_two(places)
    group.make_steps(50)
    for process in frozen:
        process.resume()
    group.wait_for(first, second)
    group.make_steps()
    last, told = group.finish_soon(first, second)
    assert [step.number for step in group.steps(0)] == [*range(1, last + 1)]
    assert told == {train_alone(group.folder / "alone", last)}


def test_one_that_was_frozen_until_the_others_had_finished_trains_no_more(places):
    first, second, _ = places
    group, frozen = freeze_one_of_two(places)
    last, _ = group.finish_soon(first)
    for process in frozen:
        process.resume()
    assert second.process.wait(LIMIT_S) == 0, second.console()
    assert second.outcome()["cause"] == "completed"
    assert {step.number for step in group.steps(1)} < set(range(last - 50))
