"""Types ``launcher`` for the test cluster, and sees what its runs leave."""

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil

from tests.launcher.runner import Runner, hear_hangups
from tests.slurm.cluster import Cluster
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SEEN = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
run = pathlib.Path(os.environ["RUN_DIR"])
index, world = os.environ["LAUNCHER_NODE_INDEX"], os.environ["WORLD_SIZE"]
with (run / f"seen-{index}-of-{world}").open("a") as file:
    file.write(".")
while not (run / "go").exists():
    time.sleep(0.1)
"""
"""Each worker leaves a file ``seen-INDEX-of-WORLD``, a byte longer with each start."""
PREFIX = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 5\n"
ALLOCATION = "slurm: {kind: allocation, exclusive: true}\n"
ARRAY = "slurm: {kind: array, exclusive: true}\n"


class Typist(Runner):
    """A folder that is on the shared file system, as this machine's all are."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.env |= {name: cluster.env[name] for name in ("SLURM_CONF", "PATH")}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """As ``Runner.start``; what it says on stderr can be read while it runs: ``said``."""
        with self.said.open("wb") as file:
            process = subprocess.Popen(
                self.argv(*argv),
                cwd=self.folder,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=file,
                preexec_fn=hear_hangups,
            )
        self.started.append(process)
        return process

    @property
    def said(self) -> Path:
        """The stderr of the last launcher that was started."""
        return self.folder / "said"

    def wait_said(self, text: str) -> None:
        """Until the last launcher that was started says so."""
        wait_until(lambda: text in self.said.read_text(), text)

    def start_seen(self, job: str, count: int, *options: str) -> str:
        """A run of ``SEEN``, once so many nodes are at work as one group; its id."""
        self.write(SEEN, PREFIX + job)
        self.start("run", "job.yaml", "--on", "slurm", *options)
        self.wait_seen(range(count), count)
        (run_id,) = self.run_ids()
        return run_id

    def wait_seen(self, indices: range, world: int) -> None:
        """Until workers on these nodes have been at work in a group of this size."""
        wait_until(
            lambda: all((self.run / f"seen-{index}-of-{world}").exists() for index in indices),
            f"{[*indices]} of {world}",
        )

    def forget_seen(self) -> None:
        """From here on only those that start now are seen."""
        for path in self.run.glob("seen-*"):
            path.unlink()

    def go(self) -> None:
        """Has the workers end with code 0."""
        (self.run / "go").touch()

    def finish(self, limit_s: float = 60.0) -> tuple[int, str, str]:
        """Waits for the last launcher that was started: exit code, stdout, stderr."""
        process = self.started[-1]
        out, _ = process.communicate(timeout=limit_s)
        return process.returncode, out.decode(), self.said.read_text()

    @property
    def run(self) -> Path:
        return self.folder / "runs/latest"

    @property
    def job(self) -> str:
        """The id of the run's only job."""
        (path,) = (self.run / "slurm").glob("*.job")
        return path.stem

    def starts(self) -> dict[str, str]:
        """Each start's last word by its key, empty while it runs."""
        folder = self.run / "slurm"
        found = {path.stem: "" for path in sorted(folder.glob("*.started"))}
        return found | {path.stem: path.read_text().strip() for path in folder.glob("*.ended")}

    def node_of(self, key: str) -> list[str]:
        """On which nodes a start runs, such as ``7_1.0``."""
        return (self.run / "slurm" / f"{key}.started").read_text().split()

    def status(self, run_id: str) -> dict[str, Any]:
        done = self.well("status", run_id, "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def end(self) -> None:
        """Ends the launchers that a failed test has left; what they started is the cluster's."""
        for process in self.started:
            process.kill()
            process.wait()

    def left(self) -> list[int]:
        """Processes of these runs anywhere on this machine, those of the nodes too."""
        return [pid for pid in self.processes() if psutil.pid_exists(pid)]
