"""Nodes in one elastic group around the agent's own store, for tests of whole groups."""

from __future__ import annotations

from launcher.contract.agent_settings import StoreEndpoint
from tests.launcher.agent.place import LIMIT_S, Place, free_port, wait_until

TELLING = """
import os, pathlib, time
with open("seen-" + os.environ["LAUNCHER_NODE_INDEX"], "a") as file:
    file.write(" ".join((os.environ["WORLD_SIZE"], os.environ["LAUNCHER_GENERATION"])) + "\\n")
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


def kill(place: Place) -> None:
    """The supervisor's death is that of the whole node."""
    assert place.process is not None
    place.process.kill()
    place.process.wait()
