"""A host that is started anew in the middle of a detached run: Docker brings its node back."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.hosts.places import Network, wait_until
from tests.hosts.typist import Typist

pytestmark = [pytest.mark.hosts, pytest.mark.docker, pytest.mark.timeout(600)]

STEPS = """
import json, os, pathlib, time, torch, torch.distributed as dist
shared = pathlib.Path("/code/shared")
index = os.environ["LAUNCHER_NODE_INDEX"]
dist.init_process_group("gloo")
def write(name, text):
    (shared / f"{name}.new").write_text(text)
    os.replace(shared / f"{name}.new", shared / name)
done = shared / "done"
step, worlds = json.loads(done.read_text()) if done.exists() else (0, [])
worlds.append(dist.get_world_size())
while True:
    seen = torch.ones(1)
    dist.all_reduce(seen)
    step += 1
    write(f"beat-{index}", f"{int(seen)} {time.time()}")
    if dist.get_rank() == 0:
        write("done", json.dumps([step, worlds]))
    going = torch.tensor([0.0 if (shared / "go").exists() else 1.0])
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
    if not going.item():
        break
    time.sleep(0.2)
if dist.get_rank() == 0:
    metrics = json.dumps({"steps": step, "last_world": worlds[-1]})
    pathlib.Path(os.environ["RUN_DIR"], "metrics.json").write_text(metrics)
dist.destroy_process_group()
"""
PREFIX = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 10\nhosts: {runtime: docker}\n"


class Steps:
    """A detached run of ``STEPS`` on two hosts, and what its nodes tell in a shared folder."""

    def __init__(self, typist: Typist) -> None:
        self.typist, self.shared = typist, typist.folder / "shared"
        self.shared.mkdir()
        mount = f"mounts: ['{typist.folder}:/code']\nworkdir: /code\n"
        # What a run without a folder that hosts share does not do: go on with half of its nodes.
        mount += f"checkpoint_dir: {self.shared}/checkpoints\n"
        typist.write(STEPS, prefix=PREFIX + mount + "agent: {detection_limit_s: 2}\n")
        typist.limit_s = 400.0
        started = typist("run", "job.yaml", "--nnodes", "1:2", "--detach")
        assert started.returncode == 0, started.stderr
        self.run_id = started.stdout.strip()

    def wait_for_both(self) -> None:
        """Until both have computed together after this call."""
        began = time.time()
        wait_until(
            lambda: all(self.beat(index) > (2, began) for index in (0, 1)), 120, "a world of two"
        )

    def beat(self, index: int) -> tuple[int, float]:
        path = self.shared / f"beat-{index}"
        world, at = path.read_text().split() if path.exists() else ("0", "0")
        return int(world), float(at)

    def kill_launcher(self) -> None:
        text = (self.typist.folder / f"runs/{self.run_id}/launcher.json").read_text()
        os.kill(json.loads(text)["pid"], signal.SIGKILL)

    def finish(self) -> None:
        (self.shared / "go").touch()
        wait_until(lambda: "succeeded" in self.typist("status", self.run_id).stdout, 120)
        steps, worlds = json.loads((self.shared / "done").read_text())
        assert worlds[-1] == 2
        assert self.typist.outcome["metrics"] == {"steps": steps, "last_world": 2}


def test_a_host_that_is_started_anew_joins_its_run_again_without_any_launcher(
    typist: Typist, four_engines: Network
) -> None:
    run = Steps(typist)
    run.wait_for_both()
    run.kill_launcher()
    host = four_engines.hosts[1]
    host.reboot()
    run.wait_for_both()
    status = typist("status", run.run_id)
    assert "node 1.0: running" in status.stdout, status.stdout + status.stderr
    rows = json.loads(typist("hosts", "--json").stdout)
    assert [len(row["leases"]) for row in rows[:2]] == [1, 1]
    run.finish()
