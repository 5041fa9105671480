"""Hosts that tests share, and the check that each of them leaves nothing there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.places import Network


@pytest.fixture(scope="session")
def four_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    network = Network(tmp_path_factory.mktemp("hosts"), 4)
    try:
        network.make()
        yield network
    finally:
        network.remove()
