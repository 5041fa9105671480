"""``hold``, ``run --in`` and ``release`` on hosts: typed as a person would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.contract.process_stat import parent_of
from launcher.contract.protocol import NODE_INDEX, RUN_ID
from launcher.targets import process_table
from launcher.targets.hosts.program.processes import KEEPER
from tests.hosts.typist import STATE, Typist
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts

TELLS = """
import os, socket, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
names = [None] * dist.get_world_size()
dist.all_gather_object(names, socket.gethostname())
print("edit", %d, sorted(names), os.environ.get("LEFT"), sys.argv[1:], flush=True)
os.environ["LEFT"] = "1"
if "fail" in sys.argv:
    raise ValueError("as asked")
while "wait" in sys.argv:
    node = os.environ["LAUNCHER_NODE_INDEX"] + "-" + os.environ["LAUNCHER_INCARNATION"]
    open(os.path.join(os.environ["RUN_DIR"], "up-" + node), "w").close()
    time.sleep(0.1)
"""
WORLD = "['gpu1', 'gpu2'] None"


class Held:
    """A hold ``dev`` on two hosts, whose script is edited before each run."""

    def __init__(self, typist: Typist) -> None:
        self.typist, self.edits = typist, 0
        typist.write("")
        done = typist("hold", "--name", "dev", "job.yaml", "--nnodes", "2")
        assert done.returncode == 0, done.stderr
        self.run_id = done.stdout.strip()

    @property
    def folder(self) -> Path:
        return self.typist.folder / "runs" / self.run_id

    def edit(self) -> str:
        """What the script now prints on each rank."""
        self.edits += 1
        self.typist.write(TELLS % self.edits)
        return f"edit {self.edits} {WORLD}"

    def start_waiting(self) -> subprocess.Popen[bytes]:
        """A run that has started, and does not end by itself."""
        self.edit()
        process = self.typist.start("run", "job.yaml", "--in", "dev", "--", "wait")
        latest = self.typist.folder / "runs/latest"
        wait_until(lambda: len(list(latest.glob("up-*"))) == 2, limit_s=90)
        return process

    def kill_node(self, index: int) -> None:
        """The first process of a node, which its keeper has started."""
        found = process_table.find(**{RUN_ID: self.run_id, NODE_INDEX: str(index)})
        keepers = [pid for pid in found if process_table.variable_of(pid, KEEPER)]
        (first,) = (pid for pid in found if parent_of(pid) in keepers)
        os.kill(first, signal.SIGKILL)

    def run_well(self) -> str:
        told = self.edit()
        done = self.typist("run", "job.yaml", "--in", "dev", "--", "--lr", "0.1")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"{told} ['--lr', '0.1']") == 2, done.stdout
        return done.stderr


@pytest.fixture
def held(typist: Typist) -> Iterator[Held]:
    held = Held(typist)
    yield held
    done = typist("release", "dev")
    assert done.returncode == 0, done.stderr


def test_three_runs_in_one_hold_of_hosts(held: Held) -> None:
    typist = held.typist
    assert "running on hosts gpu1, gpu2" in held.run_well()
    held.edit()
    failed = typist("run", "job.yaml", "--in", "dev", "--", "fail")
    assert failed.returncode == 1, failed.stderr
    assert "ValueError: as asked" in failed.stderr
    running = held.start_waiting()
    # A run takes no lease: the hold has them.
    leases = json.loads(typist("hosts", "--json").stdout)
    assert {lease["run_id"] for host in leases for lease in host["leases"]} == {held.run_id}
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert ", free" in typist("status", "dev").stdout
    told = held.edit()
    fresh = typist("run", "job.yaml", "--in", "dev", "--fresh")
    assert fresh.returncode == 0, fresh.stderr
    assert fresh.stdout.count(told) == 2
    for host in typist.network.hosts[:2]:
        assert host.run("ls", f"{STATE}/runs").split() == [held.run_id]


def test_lost_nodes_of_a_hold_are_replaced_and_a_lost_launcher_frees_it(held: Held) -> None:
    held.kill_node(1)
    wait_until(lambda: (held.folder / "nodes/1/1/ready").exists(), limit_s=120)
    held.run_well()
    running = held.start_waiting()
    held.kill_node(1)
    # The run goes on in the hold's next node.
    latest = held.typist.folder / "runs/latest"
    wait_until(
        lambda: [*latest.glob("up-1-[1-9]*")], lambda: held.typist("logs", "-v").stderr, limit_s=120
    )
    running.kill()
    running.wait()
    # At once: the hold ends what still runs there.
    held.run_well()
    # As for any run, a later command removes what a dead launcher's run has left on its hosts,
    # and nobody what torch has in memory where all that knew of it was killed.
    held.typist("ps")
    held.typist.network.hosts[1].run("sh", "-c", "rm -f /dev/shm/sem.mp-*")
