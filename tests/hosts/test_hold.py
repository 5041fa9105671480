"""``hold``, ``run --in`` and ``release`` on hosts: typed as a person would."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from launcher.contract.protocol import NODE_INDEX, RUN_ID
from launcher.targets import process_table
from launcher.targets.hosts.program.processes import KEEPER
from tests.hosts.typist import Typist
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts

TELLS = """
import os, socket, sys, tempfile, time
import torch.distributed as dist
dist.init_process_group("gloo")
names = [None] * dist.get_world_size()
dist.all_gather_object(names, socket.gethostname())
print("edit", %d, sorted(names), os.environ.get("LEFT"), sys.argv[1:], flush=True)
os.environ["LEFT"] = "1"
if "fail" in sys.argv:
    raise ValueError("as asked")
while "wait" in sys.argv:
    open(os.path.join(os.environ["RUN_DIR"], "up-" + os.environ["RANK"]), "w").close()
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

    def run_well(self) -> str:
        told = self.edit()
        done = self.typist("run", "job.yaml", "--in", "dev", "--", "--lr", "0.1")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"{told} ['--lr', '0.1']") == 2, done.stdout
        return done.stderr


def test_runs_in_a_hold_of_hosts(typist: Typist) -> None:
    held = Held(typist)
    told = held.run_well()
    print(told)
    held.edit()
    failed = typist("run", "job.yaml", "--in", "dev", "--", "fail")
    assert failed.returncode == 1, failed.stderr
    assert "ValueError: as asked" in failed.stderr + failed.stdout
    print(typist("hosts").stdout)
    held.run_well()
    assert typist("release", "dev").returncode == 0
