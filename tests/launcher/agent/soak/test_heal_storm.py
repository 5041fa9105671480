"""Nodes of four are killed and frozen at random, also two at once and in the middle of a heal.

LAUNCHER_SOAK_LOSSES: how many losses, by default 30.
"""

import os
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.launcher.agent.group import kill, tree
from tests.launcher.agent.healing import HealingGroup, train_alone
from tests.launcher.agent.place import Place
from tests.waiting import wait_until

LOSSES = int(os.environ.get("LAUNCHER_SOAK_LOSSES", "30"))


@pytest.mark.timeout(600 + 6 * LOSSES)
def test_the_weights_do_not_depend_on_any_losses_and_nothing_is_left_behind(places):
    chance = random.Random(LOSSES)
    places.append(Place(places[0].folder, places[0].archive, 3))
    group = HealingGroup(places, detection_limit_s="5")
    group.start_all()
    group.make_steps()
    living = {place.index: place for place in places}
    # Node 1 lives through it all: it shows that nothing grows.
    before = use_of(group.steps(1)[-1].pid)
    losses = 0
    while losses < LOSSES:
        victims = chance.sample([0, 2, 3], chance.choice([1, 1, 1, 2]))
        frozen = {index: tree(living[index]) for index in victims if chance.random() < 0.15}
        for index in victims:
            if index in frozen:
                for process in frozen[index]:
                    process.suspend()
            else:
                kill(living[index])
            # Sometimes while the first loss heals.
            time.sleep(chance.choice([0.0, 0.0, 0.05, 0.2, 0.5]))
        losses += len(victims)
        group.make_steps(2)
        for index in victims:
            if index in frozen:
                for process in frozen[index]:
                    process.resume()
            else:
                living[index] = group.start_again(living[index])
        if chance.random() < 0.8:
            group.wait_for(*living.values())
            group.make_steps(2)
    group.wait_for(*living.values())
    group.make_steps()
    after = use_of(group.steps(1)[-1].pid)
    last, told = group.finish_soon(*living.values())
    assert told == {train_alone(Path(group.folder) / "alone", last)}
    assert len({step.pid for step in group.steps(1)}) == 1
    made = {step.number for index in range(4) for step in group.steps(index)}
    assert made == set(range(1, last + 1))
    for what, (was, now) in {what: (before[what], after[what]) for what in before}.items():
        assert now <= was * 1.1 + 20, f"{what}: {was}, and {now} after {losses} losses"
    wait_until(lambda: not any(place.processes() for place in group.places))


def use_of(pid: int) -> dict[str, float]:
    """The memory in MiB, the open files and the threads of a process."""
    process = psutil.Process(pid)
    return {
        "memory": process.memory_info().rss / 2**20,
        "files": process.num_fds(),
        "threads": process.num_threads(),
    }
