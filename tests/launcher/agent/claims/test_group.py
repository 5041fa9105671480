"""What happens to nodes, as one group of three real ones lives through it."""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.launcher.agent.conftest import end
from tests.launcher.agent.group import Group, kill, tree
from tests.launcher.agent.place import LIMIT_S, Place, free_port

SKEW_S = 90.0
"""How far the clocks of nodes 0 and 1 are from this machine's, where there is a C compiler."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """The group after its end, and its nodes by what became of them."""

    group: Group
    preempted: Place
    killed_in_a_collective: Place
    frozen: Place
    came_back: Place
    killed_with_store: Place
    exit_code: int
    clocks: tuple[float, float]
    """By how much nodes 0 and 1 took the time for a later one."""
    generations: tuple[int, int, int]
    """Before the freeze, without the frozen node, and after it woke."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("group")
    group = Group([Place(folder, archive, index) for index in range(3)])
    if shutil.which("cc"):
        source, library = (Path(__file__).parents[1] / "skewed_clock.c"), folder / "skewed_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
        for place, skew_s in zip(group.places, (-SKEW_S, SKEW_S), strict=False):
            place.env |= {"LD_PRELOAD": str(library), "CLOCK_SKEW_S": str(skew_s)}
    try:
        yield live(group)
    finally:
        for place in group.places:
            end(place)


def live(group: Group) -> Story:
    """Nodes are lost and come back, in every way; the last one finishes."""
    first, second, preempted = group.places
    group.start_all()
    clocks = first.events()[0]["at"] - time.time(), second.events()[0]["at"] - time.time()
    assert preempted.process is not None
    # To all of its processes at once, as Slurm does: its worker dies of it.
    for process in reversed(tree(preempted)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    exit_code = preempted.process.wait(LIMIT_S)
    group.wait_for(first, second)

    (group.folder / "together").touch()
    third = group.start_again(preempted)
    group.wait_for(first, second, third)
    (group.folder / "together").unlink()
    kill(second)
    group.wait_for(first, third)

    before = group.seen(third)[-1][1]
    frozen = tree(first)
    for process in frozen:
        process.suspend()
    group.wait_for(third)
    without = group.seen(third)[-1][1]
    for process in frozen:
        process.resume()
    group.wait_for(first, third)
    after = group.seen(first)[-1][1]

    kill(first)
    group.wait_for(third)
    back = group.start_again(first)
    group.wait_for(back, third)
    kill(third)
    group.wait_for(back)
    group.finish(back)
    return Story(
        group=group,
        preempted=preempted,
        killed_in_a_collective=second,
        frozen=first,
        came_back=back,
        killed_with_store=third,
        exit_code=exit_code,
        clocks=clocks,
        generations=(before, without, after),
    )


def test_a_preempted_node_ends_with_143(story):
    assert story.exit_code == 143
    assert story.preempted.outcome()["cause"] == "preempted"


def test_the_loss_of_a_node_costs_the_others_no_restart_in_a_collective_or_outside(story):
    assert [world for world, *_ in story.group.seen(story.killed_in_a_collective)] == [3, 2, 3]
    # No restart was allowed, so whoever got this far was charged with none.
    assert story.came_back.outcome()["cause"] == "completed"
    assert set(story.came_back.outcome()["restarts"]) <= {"membership", "lost-peer"}
    how = "node 1 is lost: its connection closed and its port refuses"
    told = [*story.frozen.events(), *story.killed_with_store.events()]
    assert how in [event["detail"] for event in told if event["event"] == "node-lost"]


def test_all_re_form_when_the_node_with_the_store_is_frozen_and_when_it_is_killed(story):
    assert "store-lost; starting again" in story.killed_with_store.console()
    assert "store-lost" in [event["event"] for event in story.came_back.events()]
    assert story.came_back.outcome()["restarts"]["membership"] >= 1
    ports = [at.rpartition(":")[2] for *_, at in story.group.seen(story.came_back)]
    first, _, third = (str(store.port) for store in story.group.stores)
    assert list(dict.fromkeys(ports)) == [first, third]
    assert ports[-1] == first, "it serves the store itself in the end"


def test_a_node_that_wakes_joins_the_others_under_a_later_generation(story):
    before, without, after = story.generations
    assert before < without < after


def test_a_node_that_wakes_or_comes_back_never_trains_alone_beside_the_others(story):
    worlds = [world for world, *_ in story.group.seen(story.frozen)]
    assert worlds == [3, 2, 3, 2, 2, 2, 1], "alone only once it was the last"


@pytest.mark.cc
def test_clocks_that_differ_by_minutes_change_nothing(story):
    assert story.clocks[0] < -SKEW_S / 2
    assert story.clocks[1] > SKEW_S / 2
    assert story.came_back.outcome()["cause"] == "completed"


def test_a_store_that_nobody_serves_is_unreachable_and_worth_a_retry(places):
    places[1].write("print('never')")
    places[1].plan(port=free_port(), max_nodes=2, conf=(("connect_timeout_s", "1"),))
    assert places[1].run() == 193
    assert places[1].outcome()["cause"] == "rendezvous-unreachable"
