"""An elastic training that counts its steps, goes on from the last one, and tells where it is."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.hosts.typist import Typist
from tests.waiting import wait_until

SCRIPT = """
import json, os, pathlib, time, torch, torch.distributed as dist
shared = pathlib.Path(os.environ["SHARED"])
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
PREFIX = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 10\nagent: {detection_limit_s: 2}\n"
LIMIT_S = 150.0


class Steps:
    """A run on at most two hosts, and what its nodes tell in a folder that all of them see."""

    def __init__(self, typist: Typist, runtime: str) -> None:
        self.typist, self.shared = typist, typist.folder / "shared"
        self.shared.mkdir()
        mount = f"mounts: ['{typist.folder}:{typist.folder}']\nworkdir: {typist.folder}\n"
        # A run without a folder that hosts share would not go on with half of its nodes.
        job = (
            f"{PREFIX}hosts: {{runtime: {runtime}}}\nenv: {{SHARED: '{self.shared}'}}\n"
            f"checkpoint_dir: {self.shared}/checkpoints\n"
        )
        typist.write(SCRIPT, prefix=job + (mount if runtime == "docker" else ""))
        typist.limit_s = 400.0
        self.launcher: subprocess.Popen[bytes] | None = None

    def follow(self) -> None:
        """Starts it with a launcher that follows it."""
        self.launcher = self.typist.start("run", "job.yaml", "--nnodes", "1:2")
        self.wait_for(0, 1)

    def detach(self) -> None:
        """Starts it, and ends the process that follows it."""
        self.typist.well("run", "job.yaml", "--nnodes", "1:2", "--detach")
        self.wait_for(0, 1)
        launcher = Path(self.typist.folder, "runs", self.run_id, "launcher.json")
        os.kill(json.loads(launcher.read_text())["pid"], signal.SIGKILL)

    @property
    def run_id(self) -> str:
        (run_id,) = self.typist.run_ids()
        return run_id

    def wait_for(self, *indices: int) -> None:
        """Until these nodes, and no other, have computed together after this call."""
        began = time.time()
        wait_until(
            lambda: all(self._has_computed(index, len(indices), began) for index in indices),
            lambda: f"a world of {indices}; {[self.beat(0), self.beat(1)]} since {began}",
        )

    def _has_computed(self, index: int, world: int, since: float) -> bool:
        ended = self.launcher is not None and self.launcher.poll() is not None
        assert not ended, f"the run has ended: {self.typist('report', self.run_id).stdout}"
        size, at = self.beat(index)
        return size == world and at > since

    def beat(self, index: int) -> tuple[int, float]:
        """The world that a node last computed in, and when."""
        path = self.shared / f"beat-{index}"
        world, at = path.read_text().split() if path.exists() else ("0", "0")
        return int(world), float(at)

    def finish(self) -> None:
        """Lets it end, as one world of two, and looks at the result."""
        (self.shared / "go").touch()
        if self.launcher is not None:
            assert self.launcher.wait(LIMIT_S) == 0
        else:
            told = lambda: self.typist("status", self.run_id).stdout  # noqa: E731
            wait_until(lambda: "SUCCEEDED" in told(), told)
        steps, worlds = json.loads((self.shared / "done").read_text())
        assert worlds[-1] == 2
        assert self.typist.outcome["metrics"] == {"steps": steps, "last_world": 2}
