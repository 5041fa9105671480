"""The node that serves the rendezvous' store is killed, freezes and wakes, or comes back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.agent.settings import StoreEndpoint
from tests.launcher.agent.place import LIMIT_S, Place, wait_until
from tests.launcher.agent.test_nodes import free_port

pytestmark = pytest.mark.slow

TELLING = """
import os, pathlib, time
with open("seen-" + os.environ["LAUNCHER_NODE_INDEX"], "a") as file:
    file.write(os.environ["WORLD_SIZE"] + " " + os.environ["LAUNCHER_GENERATION"] + "\\n")
while not pathlib.Path("done").exists():
    time.sleep(0.05)
"""
"""Each start of a worker leaves its world size and its generation; then it sleeps."""


class Group:
    """Nodes that may each serve the store, in order of index."""

    def __init__(self, places: list[Place]) -> None:
        self.places, self.folder = places, places[0].folder
        self.stores = tuple(
            StoreEndpoint(host="127.0.0.1", port=free_port(), node_index=place.index)
            for place in places
        )
        places[0].write(TELLING)
        for place in places:
            self.start(place)
        wait_until(lambda: self.all_in(places, len(places)))

    def start(self, place: Place) -> None:
        # The last call is long: only a first round of strangers may wait for it.
        conf = {"fence_dir": str(self.folder), "detection_limit_s": "1", "last_call_s": "100"}
        place.plan(
            max_nodes=len(self.stores),
            backend="roster",
            port=self.stores[0].port,
            stores=self.stores,
            start="fork",
            conf=(*conf.items(), ("growth_pause_s", "0")),
        )
        place.start()

    def seen(self, place: Place) -> list[tuple[int, int]]:
        """World size and generation of each start of the place's worker."""
        path = self.folder / f"seen-{place.index}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(world), int(generation)) for world, generation in map(str.split, lines)]

    def all_in(self, places: list[Place], world: int) -> bool:
        """Whether they all run in one group of this size."""
        last = {self.seen(place)[-1] if self.seen(place) else (0, 0) for place in places}
        return len(last) == 1 and last.pop()[0] == world

    def finish(self, places: list[Place]) -> None:
        (self.folder / "done").touch()
        for place in places:
            assert place.process is not None
            assert place.process.wait(LIMIT_S) == 0, place.console()


@pytest.fixture
def group_of(places: list[Place]) -> Iterator[Callable[[int], Group]]:
    def make(size: int) -> Group:
        del places[size:]
        return Group(places)

    yield make
    for place in places:
        for process in place.processes():
            process.send_signal(signal.SIGCONT)


def kill(place: Place) -> None:
    """The supervisor's death is that of the whole node."""
    assert place.process is not None
    place.process.kill()
    place.process.wait()


def tree(place: Place) -> list[psutil.Process]:
    """The supervisor first: it must not see its children stop."""
    assert place.process is not None
    supervisor = psutil.Process(place.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


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


def test_two_candidates_that_are_lost_at_once_leave_the_third(
    group_of: Callable[[int], Group],
) -> None:
    group = group_of(3)
    kill(group.places[0])
    kill(group.places[1])
    wait_until(lambda: group.all_in(group.places[2:], 1))
    group.finish(group.places[2:])


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


@pytest.mark.parametrize("others_are_ready", [True, False])
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
