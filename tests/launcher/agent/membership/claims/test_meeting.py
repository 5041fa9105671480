"""Nodes that know no address meet through a folder, again after losses."""

import json
from typing import Any

from launcher.agent.addresses import LOOPBACK, own_addresses
from tests.launcher.agent.group import Group, kill
from tests.launcher.agent.place import Place
from tests.waiting import wait_until


class Met(Group):
    """Nodes whose plans hold no address that means anything."""

    def start(self, place: Place) -> None:
        place.plan(
            max_nodes=self.size,
            port=1,
            meet_dir=str(self.folder / "meet"),
            start="fork",
            conf=tuple(self.conf.items()),
        )
        place.start()

    def files(self) -> list[dict[str, Any]]:
        paths = sorted((self.folder / "meet").glob("coordinator-*.json"))
        # One that is just being written is empty.
        return [json.loads(text) for text in (path.read_text() for path in paths) if text]


def test_nodes_meet_at_whoever_came_first_and_again_after_a_loss(places):
    del places[2:]
    group = Met(places, last_call_s="1")
    first, second = places
    group.start(second)
    wait_until(group.files)
    group.start(first)
    group.wait_for(first, second)
    (said,) = group.files()
    assert said["addresses"][-1] == LOOPBACK
    # Not all: networks of containers come and go on this machine.
    assert {*said["addresses"]} & {*own_addresses()} or not own_addresses()
    kill(second)
    group.wait_for(first)
    back = group.start_again(second)
    group.wait_for(first, back)
    assert [said["node_index"] for said in group.files()] == [1, 0], "the first one serves now"
    group.finish(first, back)
