"""A script of one's own on real hosts, in both runtimes: as it trains on this machine."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.targets.hosts.settings import LEASE_DIR
from tests.hosts.places import Network, sh
from tests.hosts.typist import STATE, Typist
from tests.launcher.own_script.project import ARGUMENTS, TWO_BY_TWO, losses_in, make_project
from tests.waiting import wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]
PYTHON = ("--nproc-per-node", "1", "--set", "hosts.runtime=python")


LARGE_BYTES = 3 << 20
"""More than a run sends besides its code."""


@pytest.fixture
def project(typist: Typist, tmp_path: Path, request: pytest.FixtureRequest) -> Typist:
    """A folder with a script, and large enough that it is seen on the network."""
    if "docker" in request.node.name:
        request.getfixturevalue("four_engines")
    typist.folder = make_project(tmp_path)
    typist.env["LAUNCHER_HOSTS"] = "../hosts.yaml"
    (typist.folder / "large.bin").write_bytes(os.urandom(LARGE_BYTES))
    return typist


@pytest.fixture
def sent(four_hosts: Network) -> Callable[[], int]:
    """The bytes that this machine has sent to the hosts since the last call."""
    counter = Path(f"/sys/class/net/{four_hosts.label}/statistics/tx_bytes")
    seen = [int(counter.read_text())]

    def read() -> int:
        seen.append(int(counter.read_text()))
        return seen[-1] - seen[-2]

    return read


@pytest.mark.parametrize("runtime", ["python", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_folder_with_a_script_trains_as_on_this_machine(project, sent, runtime):
    words = ("run", "train.py", *TWO_BY_TWO, "--set", f"hosts.runtime={runtime}", *ARGUMENTS)
    done = project.well(*words)
    brought = project.folder / "runs" / project.outcome["run_id"] / "code"
    assert os.listdir(brought) == ["out.txt"]
    assert (brought / "out.txt").read_text().split() == losses_in(done.stdout)
    assert (brought / "out.txt").stat().st_uid == os.getuid()
    assert f"what the training wrote beside its code: {brought}" in done.stderr
    assert sent() > 2 * LARGE_BYTES
    here = project("run", "train.py", "--on", "local", *TWO_BY_TWO, *ARGUMENTS)
    assert losses_in(here.stdout) == losses_in(done.stdout)
    # It would be part of the code from now on.
    (project.folder / "out.txt").unlink()
    assert project(*words).returncode == 0
    assert sent() < LARGE_BYTES


@pytest.fixture
def slow_network(four_hosts: Network) -> Iterator[None]:
    """On which 60 MB take 100 s to two hosts; what ssh holds back is through in seconds."""
    tc = ("tc", "qdisc")
    limits = ("tbf", "rate", "10mbit", "burst", "256kbit", "latency", "200ms")
    sh(*tc, "add", "dev", four_hosts.label, "root", *limits)
    try:
        yield
    finally:
        sh(*tc, "del", "dev", four_hosts.label, "root")


@pytest.mark.parametrize("wait_s", [0.0, 0.4])
def test_an_interrupt_while_code_is_sent_leaves_nothing(wait_s, project, slow_network, four_hosts):
    (project.folder / "large.bin").write_bytes(os.urandom(60 << 20))
    before = archives(four_hosts)
    for host in four_hosts.hosts:
        host.run("rm", "-rf", LEASE_DIR)  # An earlier run's lease files stay there.
    launcher = project.start("run", "train.py", "--nnodes", "2", *PYTHON)
    wait_until(lambda: project.run_ids() and is_held(four_hosts))
    time.sleep(wait_s)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(60) == 130
    assert archives(four_hosts) == before
    assert project.outcome["cause"] == "interrupted"


def archives(network: Network) -> list[str]:
    return [host.run("ls", f"{STATE}/code", check=False) for host in network.hosts]


def is_held(network: Network) -> bool:
    return all("leases" in host.run("ls", "/dev/shm") for host in network.hosts[:2])
