"""Hosts that tests share, and the check that each of them leaves nothing there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.places import Network
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


@pytest.fixture
def typist(tmp_path: Path, four_hosts: Network) -> Iterator[Typist]:
    """``launcher`` typed for the four hosts, on which it may leave nothing."""
    typist = Typist(tmp_path, four_hosts)
    yield typist
    typist.assert_nothing_left()
