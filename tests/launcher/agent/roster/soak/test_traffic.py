"""What the roster asks of the store per node and second, with simulated members."""

from __future__ import annotations

from collections import Counter

import pytest

from launcher.agent.roster.settings import Rules
from tests.launcher.agent.roster.simulation import World

SECONDS = 2.0
RULES = {"min_nodes": 2, "fence_dir": "shared", "last_call_s": 1.0, "detection_limit_s": 5.0}


def traffic_of(world: World, seconds: float) -> list[Counter[str]]:
    """Operations and keys of each node over a while in which nothing happens."""
    for node in world.nodes:
        node.operations.clear()
    world.run(seconds)
    return [node.operations for node in world.nodes]


@pytest.mark.parametrize("size", [10, 100, 1000])
def test_traffic_per_node_does_not_grow_with_the_number_of_nodes(size: int) -> None:
    world = World(Rules(max_nodes=size, **RULES))  # type: ignore[arg-type]
    nodes = [world.add(index) for index in range(size)]
    world.until(lambda: world.together(*nodes), 30)
    forming = max(sum(n.operations.values()) - n.operations["keys"] for n in nodes)
    for counted in traffic_of(world, SECONDS):
        operations = (counted["Write"] + counted["Read"]) / SECONDS
        assert counted["Swap"] == 0
        assert operations <= 8.5, "a beat and a look, four times a second"
        assert counted["keys"] / SECONDS <= 8.5 + 4 * 3
    nodes[size // 2].kill()
    rest = [n for n in nodes if not n.dead]
    took_s = world.until(lambda: world.together(*rest), 20)
    assert took_s <= 6.5
    print(f"{size} nodes: {operations:.1f} operations/s, {forming} to form, {took_s:.1f} s to heal")
