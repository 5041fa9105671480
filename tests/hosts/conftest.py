"""Hosts that tests share, and the check that each of them leaves nothing there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import DOCKER_IMAGE
from tests.hosts.places import Host, Network
from tests.hosts.typist import Typist


@pytest.fixture(scope="session")
def four_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    network = Network(tmp_path_factory.mktemp("hosts"), 4)
    # Connections that an earlier session left lead to hosts that are gone.
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="lt", dir="/tmp")
    try:
        network.make()
        yield network
    finally:
        shutil.rmtree(os.environ.pop("XDG_RUNTIME_DIR"))
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


@pytest.fixture
def small_disk(four_hosts: Network) -> Iterator[Host]:
    """The second host, with a state folder that holds 8 MiB."""
    host = four_hosts.hosts[1]
    host.run("mkdir", "-p", "/root/.launcher")
    host.run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", "/root/.launcher")
    yield host
    # A host that was swept has been started anew, without it.
    host.run("umount", "/root/.launcher", check=False)


@pytest.fixture
def typist(tmp_path: Path, four_hosts: Network) -> Iterator[Typist]:
    """``launcher`` typed for the four hosts, on which it may leave nothing."""
    typist = Typist(tmp_path, four_hosts)
    yield typist
    try:
        typist.assert_nothing_left()
    except AssertionError:
        # One that failed must not make all others fail.
        typist.sweep()
        raise


@pytest.fixture
def two_networks(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Network]:
    """Two hosts that reach each other by a second network alone; ssh uses the first."""
    connections = tempfile.mkdtemp(prefix="lt", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", connections)
    network = Network(tmp_path_factory.mktemp("two"), 2, training=True)
    try:
        network.make()
        for host, other in zip(network.hosts, reversed(network.hosts), strict=True):
            host.run("ip", "route", "add", "blackhole", f"{other.address}/32")
        yield network
    finally:
        network.remove()
        shutil.rmtree(connections)
