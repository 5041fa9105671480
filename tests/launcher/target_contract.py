"""What every target does, whatever runs the nodes: typed as a person would type it.

Each target's own tests make a class of ``TargetContract`` with a bench for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher.plan.launch_plan import parse_plan
from tests.launcher.runner import Runner
from tests.waiting import wait_until

WAITING = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("up", flush=True)
folder = pathlib.Path(os.environ["RUN_DIR"])
(folder / f"up-{os.environ['LAUNCHER_NODE_INDEX']}").touch()
while not (folder / "go").exists():
    time.sleep(0.1)
"""
"""Each worker says that it is up, and ends well once there is a file ``go`` in the run's folder."""
JOB = """
name: tiny
nnodes: 1:2
nproc_per_node: 1
stop_grace_s: 5
"""


@dataclass(kw_only=True)
class Bench:
    """One target, with a job of two nodes that wait, and ways to see and to end them."""

    name: str
    launcher: Runner
    job: str = JOB
    """What the job file says beside its command."""
    outlives_launcher: bool = True
    """Whether nodes go on when their launcher is killed."""
    ended_unseen: str = "succeeded"
    """The state of a run whose launcher was killed, once its nodes have ended well."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def on(self) -> tuple[str, str]:
        return ("--on", self.name)

    def write(self) -> None:
        self.launcher.write(WAITING, self.job)

    def start(self) -> str:
        """A run whose nodes are all at work; its id."""
        self.write()
        self.started.append(self.launcher.start("run", "job.yaml", *self.on))
        wait_until(self.launcher.run_ids)
        self.wait_up()
        (run_id,) = self.launcher.run_ids()
        return run_id

    def wait_up(self) -> None:
        """Waits until both nodes are at work."""
        wait_until(lambda: len(list(self.launcher.folder.glob("runs/latest/up-*"))) == 2)

    def end_well(self) -> None:
        """Has the nodes end with code 0."""
        (self.launcher.folder / "runs/latest/go").touch()

    def status(self, run_id: str) -> dict[str, Any]:
        done = self.launcher("status", run_id, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def listed(self) -> dict[str, dict[str, Any]]:
        """Runs that go on, by their ids."""
        done = self.launcher("ps", "--json")
        assert done.returncode == 0, done.stderr
        return {row["run_id"]: row for row in json.loads(done.stdout)}

    def running(self, run_id: str) -> list[int]:
        """Indices of the nodes that run, of those that the run is meant to have."""
        nodes = self.status(run_id)["nodes"]
        return [node["node_index"] for node in nodes if node["state"] == "running"]

    def scaled_to_one(self, run_id: str) -> bool:
        """Whether the run is one of one node by now."""
        return self.running(run_id) == [0]


class TargetContract:
    """Inherit, and give a fixture ``bench``."""

    @pytest.fixture(autouse=True)
    def _ended(self, bench: Bench) -> Iterator[None]:
        yield
        for process in bench.started:
            process.kill()
            process.communicate()

    def test_a_job_is_planned_and_rendered_without_being_run(self, bench: Bench) -> None:
        bench.write()
        planned = bench.launcher("render", "job.yaml", *bench.on, "--json")
        assert planned.returncode == 0, planned.stderr
        plan = parse_plan(planned.stdout)
        assert (plan.target, len(plan.nodes)) == (bench.name, 2)
        printed = bench.launcher("render", "job.yaml", *bench.on)
        assert "train.py" in printed.stdout
        assert bench.launcher.run_ids() == []

    def test_a_run_is_seen_while_it_goes_on_and_ends_with_its_outcome(self, bench: Bench) -> None:
        run_id = bench.start()
        assert bench.status(run_id)["state"] == "running"
        assert bench.running(run_id) == [0, 1]
        assert bench.listed()[run_id]["target"] == bench.name
        wait_until(lambda: bench.launcher("logs", run_id).stdout.count("up\n") == 2)
        bench.end_well()
        assert bench.started[0].wait(60) == 0
        outcome = bench.launcher.outcome
        assert (outcome["state"], outcome["target"]) == ("succeeded", bench.name)
        assert bench.listed() == {}
        report = bench.launcher("report", run_id)
        assert (report.returncode, f"on {bench.name}" in report.stdout) == (0, True)

    def test_a_run_takes_a_size_within_its_bounds_and_a_stop_leaves_nothing(
        self, bench: Bench
    ) -> None:
        run_id = bench.start()
        refused = bench.launcher("scale", run_id, "3")
        assert (refused.returncode, "is 1:2" in refused.stderr) == (2, True)
        taken = bench.launcher("scale", run_id, "1")
        assert taken.returncode == 0, taken.stderr
        wait_until(lambda: bench.scaled_to_one(run_id))
        first = bench.launcher("stop", run_id)
        assert (first.returncode, "stopped, stop-requested" in first.stderr) == (0, True)
        assert bench.started[0].wait(60) == 143
        second = bench.launcher("stop", run_id)
        assert second.returncode == 0, second.stderr
        assert "stopped, stop-requested" in second.stderr
        over = bench.launcher("scale", run_id, "1")
        assert (over.returncode, "has ended" in over.stderr) == (2, True)
        assert bench.listed() == {}
        assert bench.launcher.processes() == []

    def test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(self, bench: Bench) -> None:
        run_id = bench.start()
        bench.started[0].send_signal(signal.SIGKILL)
        bench.started[0].wait(10)
        if bench.outlives_launcher:
            assert run_id in bench.listed()
            bench.end_well()
        wait_until(lambda: bench.status(run_id)["outcome"] is not None)
        assert bench.status(run_id)["state"] == bench.ended_unseen
        assert bench.listed() == {}
        assert bench.launcher("logs", run_id).stdout.count("up\n") == 2
