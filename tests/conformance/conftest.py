"""What nodes meet by: a store of their own or apart, or a real etcd; and a busy machine."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from launcher.targets.local.target import find_free_ports
from tests.conformance.nodes import Group
from tests.waiting import wait_until

BUSY = 20
"""Processes that never sleep, at the same niceness as the nodes: on two cores a load above 10."""
PATIENCE = 6.0


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``HOST:PORT`` of a server that runs for as long as the tests do."""
    client, peer = find_free_ports(random.Random(), 2)
    folder = tmp_path_factory.mktemp("etcd")
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                *("etcd", "--enable-v2", "--data-dir", str(folder / "data")),
                *("--listen-client-urls", f"http://127.0.0.1:{client}"),
                *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
                *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            ],
            stdout=log,
            stderr=log,
        )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", client)) == 0

    try:
        wait_until(answers)
        yield f"127.0.0.1:{client}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def group_on(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[str, bool], Group]]:
    """Makes the group of a scenario, by its backend and by whether the store is apart."""
    ends, stores = list[Callable[[], None]](), list[TCPStore]()

    def make(backend: str, apart: bool) -> Group:
        if backend == "etcd-v2":
            endpoint = request.getfixturevalue("etcd")
        elif apart and backend == "c10d":
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            stores.append(store)
            endpoint = f"127.0.0.1:{store.port}"
        else:
            (port,) = find_free_ports(random.Random(), 1)
            endpoint = f"127.0.0.1:{port}"
        group = Group(tmp_path, backend, endpoint, run_id=tmp_path.name, apart=apart)
        ends.append(group.end)
        return group

    yield make
    for end in ends:
        end()


@pytest.fixture(scope="module")
def busy_machine() -> Iterator[None]:
    """Far more to do than there are cores."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()
