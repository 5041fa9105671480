"""Engines that a whole session shares: hosts, those with Docker on them, and a Slurm cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.hosts.places import Network
    from tests.slurm.cluster import Cluster

DOCKER_IMAGE = "fabric-train:cpu"


@pytest.fixture(scope="session")
def four_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    from tests.hosts.places import Network

    network = Network(tmp_path_factory.mktemp("hosts"), 4)
    # Connections that an earlier session left lead to hosts that are gone.
    os.environ["XDG_RUNTIME_DIR"] = folder = tempfile.mkdtemp(prefix="lt", dir="/tmp")
    try:
        network.make()
        yield network
    finally:
        # A test in which this fixture began has taken its variables away by now.
        os.environ.pop("XDG_RUNTIME_DIR", None)
        shutil.rmtree(folder)
        network.remove()


@pytest.fixture(scope="session")
def four_engines(four_hosts: Network) -> Network:
    """An engine on each host; the first one holds the image."""
    for host in four_hosts.hosts:
        if not host.has_engine:
            host.start_engine()
    first = four_hosts.hosts[0]
    save = subprocess.Popen(["docker", "save", DOCKER_IMAGE], stdout=subprocess.PIPE)
    socket = f"unix://{first.folder}/docker.sock"
    subprocess.run(["docker", "--host", socket, "load", "-q"], stdin=save.stdout, check=True)
    assert save.wait() == 0
    return four_hosts


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[Cluster]:
    from tests.slurm.cluster import Cluster

    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    """Three idle nodes; a test fails if it leaves a job in the queue or a process on a node."""
    yield one_cluster
    # One that failed must not make all others fail.
    left = one_cluster.mend()
    assert not left, f"left in the queue or on nodes: {left}"
