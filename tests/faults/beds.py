"""Where faults are made: processes, containers, hosts, Slurm, the Kubernetes test server."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Bed:
    """What the command line is given so that the run is there; ``at`` is the bed itself."""

    options: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    at: Any = None


@contextmanager
def processes(project: Path) -> Iterator[Bed]:
    yield Bed(options=("--on", "local"))


@contextmanager
def containers(project: Path) -> Iterator[Bed]:
    """This machine's engine; images run as another user, who has to read the project."""
    import docker

    for folder in (project.parent, project):
        folder.chmod(0o755)
    yield Bed(options=("--on", "docker"), at=docker.from_env())


@contextmanager
def hosts(project: Path) -> Iterator[Bed]:
    """Two hosts, ``gpu1`` and ``gpu2``."""
    from tests.hosts.places import Network

    network = Network(project.parent / "hosts", 2)
    inventory = {
        "ssh_config": str(network.ssh_config),
        "defaults": {"python": sys.executable},
        "hosts": [host.name for host in network.hosts],
    }
    (project / "hosts.yaml").write_text(json.dumps(inventory))
    connections = project.parent / "ssh"  # a socket's path is short
    connections.mkdir(mode=0o700)
    try:
        network.make()
        env = {"XDG_RUNTIME_DIR": str(connections)}
        words = ("--on", "hosts", "--hosts", "hosts.yaml", "--set", "hosts.runtime=python")
        yield Bed(options=words, env=env, at=network)
    finally:
        network.remove()


@contextmanager
def slurm(project: Path) -> Iterator[Bed]:
    """Three nodes of two cores."""
    from tests.slurm.cluster import Cluster

    cluster = Cluster()
    try:
        cluster.start()
        env = {name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}
        yield Bed(options=("--on", "slurm"), env=env, at=cluster)
    finally:
        cluster.close()


@contextmanager
def kubernetes(project: Path) -> Iterator[Bed]:
    """The server of the tests: ``surroundings`` puts pods in place, as controllers do."""
    from tests.launcher.fake_cluster import FakeCluster

    server = FakeCluster()
    try:
        config = server.write_kubeconfig(project / "kubeconfig")
        yield Bed(options=("--on", "kubernetes"), env={"KUBECONFIG": str(config)}, at=server)
    finally:
        server.close()


BEDS: dict[str, Callable[[Path], AbstractContextManager[Bed]]] = {
    "processes": processes,
    "docker": containers,
    "hosts": hosts,
    "slurm": slurm,
    "kubernetes": kubernetes,
}
