"""Nodes in one elastic group, for tests of whole groups."""

from typing import Any

import psutil

from launcher.contract.node_plan import StoreEndpoint
from tests.launcher.agent.place import LIMIT_S, Place, free_port
from tests.waiting import wait_until

TELLING = """
import os, pathlib, time
world, endpoint = os.environ["WORLD_SIZE"], os.environ["LAUNCHER_RDZV_ENDPOINT"]
together = pathlib.Path("together").exists() and int(world) > 1
if together:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    one = torch.ones(1)
    dist.all_reduce(one)
with open("seen-" + os.environ["LAUNCHER_NODE_INDEX"], "a") as file:
    file.write(" ".join((world, os.environ["LAUNCHER_GENERATION"], endpoint)) + "\\n")
while not pathlib.Path("done").exists():
    dist.all_reduce(one) if together else time.sleep(0.05)
"""
"""Each start of a worker leaves its world size, its generation and where it meets the others; then
it sleeps, or takes part in collectives where there is a file ``together``."""


class Group:
    """Nodes that may each serve the store, in order of index."""

    def __init__(self, places: list[Place], settings: Any = None, **conf: str) -> None:
        self.settings: dict[str, Any] = {"max_restarts": 0, **(settings or {})}
        self.places, self.folder, self.size = places, places[0].folder, len(places)
        self.conf = {"fence_dir": str(self.folder), "detection_limit_s": "1"}
        # The last call is long: only a first round of strangers may wait for it.
        self.conf |= {"last_call_s": "100", "growth_pause_s": "0", **conf}
        self.stores = tuple(
            StoreEndpoint(host="127.0.0.1", port=free_port(), node_index=place.index)
            for place in places
        )
        self.command: tuple[str, ...] = ("script.py",)
        places[0].write(TELLING)

    def start(self, place: Place) -> None:
        place.plan(
            *self.command,
            max_nodes=self.size,
            port=self.stores[0].port,
            stores=self.stores,
            start="fork",
            conf=tuple(self.conf.items()),
            **self.settings,
        )
        place.start()

    def start_all(self) -> None:
        for place in self.places:
            self.start(place)
        self.wait_for(*self.places)

    def start_again(self, place: Place) -> Place:
        """The same node, started anew by a scheduler."""
        new = Place(place.folder, place.archive, place.index, incarnation=place.incarnation + 1)
        new.env = place.env
        self.places.append(new)
        self.start(new)
        return new

    def seen(self, place: Place) -> list[tuple[int, int, str]]:
        """World size, generation and endpoint of each start of the worker of a node's index."""
        path = self.folder / f"seen-{place.index}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(world), int(number), at) for world, number, at in map(str.split, lines)]

    def wait_for(self, *places: Place) -> None:
        """Until exactly these nodes run in one group."""

        def together() -> bool:
            last = {self.seen(place)[-1] if self.seen(place) else (0, 0, "") for place in places}
            return len({now[:2] for now in last}) == 1 and last.pop()[0] == len(places)

        wait_until(together, self.describe)

    def describe(self) -> str:
        """What each node printed last, and its exit code."""
        newest = {place.index: place for place in self.places if place.process}
        return "\n".join(
            f"node {index}, {place.process and place.process.poll()}: {place.console()[-2000:]}"
            for index, place in newest.items()
        )

    def finish(self, *places: Place) -> None:
        (self.folder / "done").touch()
        for place in places:
            assert place.process.wait(LIMIT_S) == 0, place.console()


def kill(place: Place) -> None:
    """The supervisor's death is that of the whole node."""
    place.process.kill()
    place.process.wait()


def tree(place: Place) -> list[psutil.Process]:
    """The supervisor first: it must not see its children stop."""
    supervisor = psutil.Process(place.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]
