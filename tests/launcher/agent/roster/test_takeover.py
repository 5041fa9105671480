"""The node that serves the rendezvous' store is killed, freezes and wakes, or comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.launcher.agent.group import Group, kill
from tests.launcher.agent.place import Place, wait_until


def tree(place: Place) -> list[psutil.Process]:
    """The supervisor first: it must not see its children stop."""
    assert place.process is not None
    supervisor = psutil.Process(place.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


@pytest.mark.slow
def test_the_next_candidate_takes_over_and_the_one_after_it(
    group_of: Callable[[int], Group],
) -> None:
    group = group_of(3)
    first, second, third = group.places
    kill(first)
    wait_until(lambda: group.all_in([second, third], 2))
    kill(second)
    wait_until(lambda: group.all_in([third], 1))
    assert third.console().count("store-lost; starting again") == 2
    group.finish([third])
    assert third.outcome()["restarts"] == {}


@pytest.mark.slow
def test_two_candidates_that_are_lost_at_once_leave_the_third(
    group_of: Callable[[int], Group],
) -> None:
    group = group_of(3)
    kill(group.places[0])
    kill(group.places[1])
    wait_until(lambda: group.all_in(group.places[2:], 1))
    group.finish(group.places[2:])


@pytest.mark.slow
def test_a_store_that_freezes_is_replaced_and_its_woken_node_joins_the_others(
    group_of: Callable[[int], Group],
) -> None:
    group = group_of(2)
    first, second = group.places
    frozen = tree(first)
    for process in frozen:
        process.suspend()
    wait_until(lambda: group.all_in([second], 1))
    without_it = group.seen(second)[-1][1]
    for process in frozen:
        process.resume()
    wait_until(lambda: group.all_in([first, second], 2))
    stale, *later = [generation for _, generation in group.seen(first)]
    assert stale < without_it < later[-1]
    # Never alone beside the others: whatever it trained would compete with what they commit.
    assert [world for world, _ in group.seen(first)] == [2, 2]
    group.finish([first, second])


@pytest.mark.parametrize("others_are_ready", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_first_candidate_comes_back_and_finds_the_store_that_took_over(
    group_of: Callable[[int], Group], archive: Path, others_are_ready: bool
) -> None:
    group = group_of(2)
    first, second = group.places
    kill(first)
    if others_are_ready:
        wait_until(lambda: group.all_in([second], 1))
    again = Place(first.folder, archive, 0, incarnation=1)
    group.places.append(again)
    group.start(again)
    wait_until(lambda: group.all_in([again, second], 2) and len(group.seen(again)) == 2)
    group.finish([again, second])
    assert group.seen(again)[-1][1] > group.seen(again)[0][1]
