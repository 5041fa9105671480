"""What nodes meet by: a store of their own, or a real etcd."""

import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.targets.local.target import find_free_ports
from tests.conformance.nodes import Group
from tests.waiting import wait_until


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
def group_on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Group]]:
    """Makes the group of a scenario on a backend."""
    ends = list[Callable[[], None]]()

    def make(backend: str) -> Group:
        if backend == "etcd-v2":
            endpoint = request.getfixturevalue("etcd")
        else:
            (port,) = find_free_ports(random.Random(), 1)
            endpoint = f"127.0.0.1:{port}"
        group = Group(tmp_path, backend, endpoint, run_id=tmp_path.name)
        ends.append(group.end)
        return group

    yield make
    for end in ends:
        end()
