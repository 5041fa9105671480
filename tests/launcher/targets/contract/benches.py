"""The targets that keep the contract: each has a line in ``BENCHES``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.engines import DOCKER_IMAGE
from tests.launcher.docker_runs import node, remove_left
from tests.launcher.runner import Runner
from tests.launcher.targets.contract.contract import Bench

if TYPE_CHECKING:
    from tests.hosts.places import Network
    from tests.slurm.cluster import Cluster


class ToyRunner(Runner):
    """Types the command line that has the toy in its table."""

    def argv(self, *argv: str) -> list[str]:
        return [sys.executable, "-m", "tests.launcher.toy_target", *argv]


def kill_keeper(run: Path, index: int) -> None:
    newest = max((run / f"nodes/{index}").iterdir(), key=lambda path: int(path.name))
    os.kill(json.loads((newest / "keeper.json").read_text())["pid"], signal.SIGKILL)


def local(folder: Path, _: None) -> Iterator[Bench]:
    # They get SIGTERM when their launcher dies, however it dies.
    yield Bench(
        name="local",
        launcher=Runner(folder),
        outlives_launcher=False,
        kill_node=kill_keeper,
    )


def toy(folder: Path, _: None) -> Iterator[Bench]:
    yield Bench(name="toy", launcher=ToyRunner(folder), has_doors=False)


def docker(folder: Path, _: None) -> Iterator[Bench]:
    from docker import from_env

    runner, engine = Runner(folder), from_env()
    kill = lambda run, index: node(engine, run.name, index).kill()  # noqa: E731
    yield Bench(name="docker", launcher=runner, kill_node=kill)
    assert remove_left(engine, runner.run_ids()) == []


def hosts(folder: Path, network: Network) -> Iterator[Bench]:
    from tests.hosts.typist import kill_node, typing_on

    with typing_on(network, folder) as typist:
        # They end when nobody hears their launcher.
        words = ("--set", "hosts.runtime=python")

        def kill(run: Path, index: int) -> None:
            kill_node(run.name, index)
            # Nobody removes what torch has in memory where all that knew of it was killed.
            network.hosts[index].run("sh", "-c", "rm -f /dev/shm/sem.mp-*")

        yield Bench(
            name="hosts",
            launcher=typist,
            words=words,
            outlives_launcher=False,
            kill_node=kill,
        )


def slurm(folder: Path, cluster: Cluster) -> Iterator[Bench]:
    from tests.slurm.typist import Typist

    yield Bench(name="slurm", launcher=Typist(folder, cluster))
    # One that failed must not make all others fail.
    left = cluster.mend()
    assert not left, f"left in the queue or on nodes: {left}"


def kubernetes(folder: Path, _: None) -> Iterator[Bench]:
    from tests.k8s.held_pods import Controllers
    from tests.launcher.fake_cluster import FakeCluster

    server = FakeCluster()
    server.lets_anybody_in = True
    runner = Runner(folder)
    runner.env["KUBECONFIG"] = str(server.write_kubeconfig(folder / "kubeconfig"))
    controllers = Controllers(server, folder)
    kind = ("--kind", "job", "--set", "kubernetes.checkpoint=ephemeral")
    words = (*kind, "--image", DOCKER_IMAGE, "--set", "agent.in_image=false")
    kill = lambda run, index: controllers.replace(run.name, index)  # noqa: E731
    yield Bench(name="kubernetes", launcher=runner, words=words, kill_node=kill)
    left = controllers.left()
    controllers.close()
    server.close()
    assert left == []


class Maker(NamedTuple):
    """How a target's bench is made."""

    make: Callable[[Path, Any], Iterator[Bench]]
    engine: str = ""
    """The marker of what it needs; see ``tests/conftest.py``."""
    shared: str = ""
    """The fixture of what all of its tests share."""


BENCHES = {
    "local": Maker(local),
    "toy": Maker(toy),
    "docker": Maker(docker, "docker"),
    "hosts": Maker(hosts, "hosts", "four_hosts"),
    "kubernetes": Maker(kubernetes, "docker"),
    "slurm": Maker(slurm, "slurm", "one_cluster"),
}


def on(*names: str) -> pytest.MarkDecorator:
    """Runs a test on each of these targets whose engine is there."""
    engines = {name: BENCHES[name].engine for name in names}
    marks = {name: getattr(pytest.mark, one) if one else () for name, one in engines.items()}
    params = [pytest.param(name, marks=marks[name]) for name in names]
    return pytest.mark.parametrize("engine_of", params, indirect=True, scope="session")
