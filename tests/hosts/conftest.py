"""Hosts in special states, and the check that each of them leaves nothing there."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.places import Host, Network
from tests.hosts.typist import Typist, typing_on


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
    with typing_on(four_hosts, tmp_path) as typist:
        yield typist


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
