"""``hold``, ``run --in`` and ``stop`` on hosts: typed as a person would."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.held import TRAINS, folder_of_hold, is_up
from tests.hosts.claims.test_hold import Held
from tests.hosts.places import Host
from tests.hosts.soak.test_endings import share_home
from tests.hosts.typist import STATE, Typist, kill_node
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
KEEPS = """
import os, pathlib
pathlib.Path(os.environ["CHECKPOINT_DIR"], "kept").touch()
"""
START_LIMIT_S = 120.0
"""For a node that imports torch, on a machine that does much else."""


@pytest.fixture(params=["python", pytest.param("docker", marks=pytest.mark.docker)])
def held(typist: Typist, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Held]:
    held = Held(tmp_path, typist.network)
    held.runtime = request.param
    if held.runtime == "docker":
        request.getfixturevalue("four_engines")
        # The image may have to travel.
        held.limit_s = 400.0
    yield held
    held.well("stop", "dev")


def containers_on(host: Host) -> list[str]:
    return host.docker("ps", "--quiet").split() if host.has_engine else []


def test_checkpoints_of_a_run_in_a_hold_stay_and_nothing_else_does(held):
    held.hold()
    hosts = held.network.hosts[:2]
    before = [containers_on(host) for host in hosts]
    assert all(before) == (held.runtime == "docker")
    held.write(KEEPS)
    held.well("run", "job.yaml", "--in", "dev")
    assert [containers_on(host) for host in hosts] == before
    for host in hosts:
        assert host.run("ls", f"{STATE}/runs").split() == [folder_of_hold(held).name]
        kept = host.run("find", f"{STATE}/checkpoints", "-name", "kept").strip()
        assert kept
        host.run("rm", "-r", os.path.dirname(kept))


def test_lost_nodes_of_a_hold_are_replaced_and_a_lost_launcher_frees_it(held):
    share_home(held)
    held.hold()
    hold = folder_of_hold(held)
    kill_node(hold.name, 1)
    wait_until(lambda: (hold / "nodes/1/1/ready").exists(), limit_s=START_LIMIT_S)
    held.run_well()
    held.write(TRAINS)
    running = held.start("run", "job.yaml", "--in", "dev", "--nnodes", "1:2")
    wait_until(lambda: is_up(held, "up-0-0", "up-1-0"), limit_s=START_LIMIT_S)
    told = held.fails(2, "scale", "latest", "1")
    assert "keeps its nodes" in told
    # A run takes no lease: the hold has them.
    hosts = json.loads(held("hosts", "--json").stdout)
    assert {lease["run_id"] for host in hosts for lease in host["leases"]} == {hold.name}
    kill_node(hold.name, 1)
    # The run goes on in the hold's next node.
    latest = held.folder / "runs/latest"
    wait_until(
        lambda: [*latest.glob("up-1-[1-9]*")],
        lambda: held("logs", "-v").stderr,
        limit_s=START_LIMIT_S,
    )
    lost = latest.resolve().name
    running.kill()
    running.communicate()
    # At once: the hold ends what still runs there.
    held.run_well()
    # As for any run, a later command removes what a dead launcher's run has left on its hosts,
    # and nobody what torch has in memory where all that knew of it was killed.
    assert held("stop", lost).returncode == 0
    held.network.hosts[1].run("sh", "-c", "rm -f /dev/shm/sem.mp-*")


def test_code_that_does_not_arrive_ends_the_run_alone(small_disk, held, four_hosts):
    held.hold()
    held.write("print('never')")
    data = held.folder / "data.bin"
    # The archive has room there, what is unpacked has not.
    data.write_bytes(os.urandom(5 << 20))
    told = held.fails(3, "run", "job.yaml", "--in", "dev")
    assert "gpu2: No space left on device" in told
    assert "make room there" in told
    assert small_disk.run("ls", f"{STATE}/runs").split() == [folder_of_hold(held).name]
    data.unlink()
    held.run_well()


def test_a_network_that_is_cut_while_code_is_sent_ends_the_run_alone(held, four_hosts):
    held.hold()
    held.write("print('never')")
    data = held.folder / "data.bin"
    data.write_bytes(os.urandom(40 << 20))
    # Two copies of it take 80 s.
    four_hosts.slow_client("8mbit")
    try:
        running = held.start("run", "job.yaml", "--in", "dev")
        latest = held.folder / "runs/latest/submitted.json"
        wait_until(lambda: latest.exists() and not latest.parent.name.startswith("dev"))
        time.sleep(5.0)
        assert running.poll() is None
        four_hosts.set_client_link(up=False)
        _, told = running.communicate(timeout=100)
    finally:
        four_hosts.set_client_link(up=True)
        four_hosts.slow_client()
    assert running.returncode == 3, told
    # Its connection was there already, or was not made yet.
    cut = b"gpu1: ssh ended with exit code 255 and printed nothing, as when the"
    assert cut in told or b"gpu1: it does not answer" in told
    data.unlink()
    # The hold's own launcher finds its nodes again.
    held.run_well()
    for host in four_hosts.hosts[:2]:
        assert host.run("ls", f"{STATE}/runs").split() == [folder_of_hold(held).name]
        host.run("sh", "-c", f"for f in {STATE}/code/*.tar.gz; do gzip -t $f || exit; done")
