"""``python -m train`` goes on in the same processes when nodes are lost and when they come."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fabric_train.worker_env import WorkerEnv
from tests.launcher.agent.conftest import archive, end
from tests.launcher.agent.group import Group, kill
from tests.launcher.agent.place import LIMIT_S, Place
from tests.waiting import wait_until
from train.config import parse_config
from train.loop import train

__all__ = ["archive"]
TRAIN = (
    *("--accelerator", "cpu", "--reduction", "exact", "--virtual_shards", "12"),
    *("--global_batch_size", "48", "--epochs", "1000", "--max_steps", "600"),
    *("--checkpoint_every_steps", "100000"),
)


class Training(Group):
    """Nodes that run the training program."""

    def __init__(self, places: list[Place], options: tuple[str, ...]) -> None:
        super().__init__(places, {"max_restarts": 3}, detection_limit_s="5")
        self.command = ("-m", "train", *options, "--checkpoint_dir", "checkpoints")
        self.ledgers = self.folder / "run/ledger"

    def events(self) -> Iterator[dict[str, Any]]:
        for path in self.ledgers.glob("train-*.jsonl"):
            yield from map(json.loads, path.read_text().splitlines())

    def step(self) -> int:
        """The newest step that the training has told."""
        return max((event.get("step") or 0 for event in self.events()), default=0)

    def make_steps(self) -> None:
        before = self.step()
        wait_until(lambda: self.step() > before)

    def begin(self) -> None:
        for place in self.places[:]:
            self.start(place)
        self.make_steps()

    def finish(self, *places: Place) -> dict[str, Any]:
        """The metrics, once all have ended well."""
        for place in places:
            assert place.process is not None
            assert place.process.wait(LIMIT_S) == 0, place.console()
        metrics: dict[str, Any] = json.loads((self.folder / "run/metrics.json").read_text())
        return metrics

    def has_let_in(self, place: Place) -> bool:
        """Whether a node's workers have made a step since they were started."""
        return any(event["event"] == "first-step" for event in place.events_or_none())


@pytest.fixture
def three(tmp_path: Path, archive: Path) -> Iterator[list[Place]]:
    places = [Place(tmp_path, archive, index) for index in range(3)]
    yield places
    for place in places:
        end(place)


def weights_of(folder: Path, options: tuple[str, ...]) -> str:
    """The hash of the weights of an undisturbed training in this process."""
    folder.mkdir()
    arguments = [*options, "--checkpoint_dir", str(folder / "checkpoints")]
    return str(train(parse_config(arguments), WorkerEnv(run_dir=folder))["weights_sha256"])


def lose_and_let_in(options: tuple[str, ...], three: list[Place], alone: Path) -> None:
    """A node is lost and comes again, then node 0; the weights are as if nothing had been."""
    group = Training(three, options)
    first, second, third = three
    group.begin()
    kill(third)
    group.make_steps()
    third = group.start_again(third)
    wait_until(lambda: group.has_let_in(third) or group.step() >= 100)
    # The coordinator and rank 0 run there.
    kill(first)
    group.make_steps()
    first = group.start_again(first)
    metrics = group.finish(first, second, third)
    assert metrics["weights_sha256"] == weights_of(alone, options)
    events = second.events()
    assert sum(event["event"] == "workers-started" for event in events) == 1
    assert sum(event["event"] == "healed" for event in events) >= 2


def test_the_weights_are_those_of_the_undisturbed_training(three, tmp_path):
    lose_and_let_in(TRAIN, three, tmp_path / "alone")
