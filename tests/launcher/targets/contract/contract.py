"""What every target does, whatever runs the nodes: typed as a person would type it.

A target keeps it by a line in ``benches.py``; what only one target does has its test elsewhere.
"""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.protocol import RUN_ID
from launcher.plan.launch_plan import parse_plan
from launcher.targets import process_table
from tests.held import SUMS
from tests.launcher.run_token import LOOKING, check_folder, check_found
from tests.launcher.runner import Runner, hear_hangups
from tests.launcher.targets.contract.environment import OURS, check_environment
from tests.waiting import wait_until

WAITING = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
def waits_to_be_told():
    while not pathlib.Path(os.environ["RUN_DIR"], "go").exists():
        time.sleep(0.1)
print("up", flush=True)
waits_to_be_told()
"""
"""Each worker says that it is up, and ends well once there is a file ``go`` in the run's folder."""
GIVEN = f"""
{LOOKING}
import re, sys, helper
ours = re.compile({OURS.pattern!r})
env = {{name: value for name, value in os.environ.items() if ours.fullmatch(name)}}
print("given", json.dumps({{"code": helper.NAME, "argv": sys.argv[1:], "env": env}}), flush=True)
"""
"""Each worker says which token, code, arguments and variables it was given."""
FAILED = (
    1,
    "training-failed",
    r"{run}: FAILED on \S+ \(training-failed; ({pod})?fault: training; exit code 1; [\d.]+ s\)",
)
ASKED = "asks.py: error: unrecognized arguments: --no-such"
ENDINGS = {
    "exits": ("import sys; sys.exit(3)", *FAILED, "rank 0 on node 0.*: exit code 3"),
    "killed": (
        "import os; os.kill(os.getpid(), 9)",
        *FAILED,
        r"rank 0 on node 0.*: SIGKILL \(9\)",
    ),
    "asks": (
        "import argparse; argparse.ArgumentParser().parse_args(['--no-such'])",
        2,
        "bad-input",
        rf"{{run}}: FAILED on \S+ \(bad-input; ({{pod}})?(rank 0: )?{ASKED}; fault: user; "
        r"exit code 2; [\d.]+ s\)",
        r"usage: asks\.py \[-h\]",
    ),
}
"""Scripts that fail: the run's exit code, its reason, its headline, and what is told below."""


@dataclass(kw_only=True)
class Bench:
    """One target, with a script for two nodes, and ways to see and to end them."""

    name: str
    launcher: Runner
    words: tuple[str, ...] = ()
    """What one types for this target alone."""
    outlives_launcher: bool = True
    """Whether nodes go on when their launcher is killed."""
    has_doors: bool = True
    """Whether programs run in its nodes, and it holds nodes for runs to come."""
    kill_node: Callable[[Path, int], object] = lambda run, index: None
    """Has a node of the run with this folder lose its power."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.launcher.folder

    def write(self, script: str, name: str = "train.py") -> None:
        (self.folder / name).write_text(script)

    def typed(self, verb: str, script: str = "train.py", nnodes: str = "1:2") -> tuple[str, ...]:
        size = ("--nnodes", nnodes, "--nproc-per-node", "1", "--set", "stop_grace_s=5")
        return (verb, script, "--on", self.name, *size, *self.words)

    def begin(self, *argv: str) -> subprocess.Popen[bytes]:
        """A launcher that this test ends; what it says is in the files ``out`` and ``err``."""
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            process = subprocess.Popen(
                self.launcher.argv(*argv),
                cwd=self.folder,
                env=self.launcher.env,
                stdout=out,
                stderr=err,
                preexec_fn=hear_hangups,
            )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kills the launchers that a test has left."""
        for process in self.started:
            process.kill()
            process.wait()

    def wait_up(self) -> None:
        """Until both workers have said that they are up."""
        wait_until(
            lambda: (self.folder / "out").read_text().count("up\n") == 2,
            lambda: (self.folder / "err").read_text(),
        )

    def start(self) -> str:
        """A run whose nodes are all at work; its id."""
        self.write(WAITING)
        self.begin(*self.typed("run"))
        self.wait_up()
        (run_id,) = self.launcher.run_ids()
        return run_id

    def end_well(self) -> None:
        """Has the nodes end with code 0."""
        if self.has_doors:
            self.launcher.well("exec", "latest", "--", "sh", "-c", 'touch "$RUN_DIR/go"')
        else:
            (self.folder / "runs/latest/go").touch()

    def status(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.launcher.well("status", run_id, "--json").stdout)
        return found

    def listed(self) -> dict[str, dict[str, Any]]:
        """Runs that go on, by their ids."""
        return {row["run_id"]: row for row in json.loads(self.launcher.well("ps", "--json").stdout)}

    def running(self, run_id: str) -> list[int]:
        """Indices of the nodes that run, of those that the run is meant to have."""
        nodes = self.status(run_id)["nodes"]
        return [node["node_index"] for node in nodes if node["state"] == "running"]

    def outcome(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self.folder / "runs" / run_id / "outcome.json").read_text()
        )
        return found


class TargetContract:
    """Inherit, and give a fixture ``bench``."""

    def test_a_script_is_planned_and_rendered_without_being_run(self, bench):
        bench.write(WAITING)
        plan = parse_plan(bench.launcher.well(*bench.typed("render"), "--json").stdout)
        assert (plan.target, len(plan.nodes)) == (bench.name, 2)
        assert "train.py" in bench.launcher.well(*bench.typed("render")).stdout
        assert "did you mean train.py?" in bench.launcher.fails(2, *bench.typed("run", "tran.py"))
        assert bench.launcher.run_ids() == []

    def test_a_run_is_seen_and_entered_while_it_goes_on_and_ends_with_its_outcome(self, bench):
        run_id = bench.start()
        assert bench.status(run_id)["state"] == "running"
        assert bench.running(run_id) == [0, 1]
        assert bench.listed()[run_id]["target"] == bench.name
        wait_until(lambda: bench.launcher("logs", run_id).stdout.count("up\n") == 2)
        if bench.has_doors:
            script = "echo here $LAUNCHER_NODE_INDEX; exit $((3 * LAUNCHER_NODE_INDEX))"
            done = bench.launcher("exec", run_id, "--", "sh", "-c", script)
            assert {*done.stdout.splitlines()} == {"[0] here 0", "[1] here 1"}, done.stdout
            assert (done.returncode, done.stderr) == (3, "node 1: exit code 3\n")
        looked = bench.launcher.well("stacks", run_id)
        assert "ranks 0-1: waits_to_be_told <- train.py:" in looked.stdout, looked.stderr
        bench.end_well()
        assert bench.started[0].wait(60) == 0
        outcome = bench.launcher.outcome
        assert (outcome["state"], outcome["target"]) == ("succeeded", bench.name)
        assert bench.listed() == {}
        assert f"on {bench.name}" in bench.launcher.well("report", run_id).stdout

    def test_a_run_takes_a_size_within_its_bounds_and_a_stop_leaves_nothing(self, bench):
        run_id = bench.start()
        assert "is 1:2" in bench.launcher.fails(2, "scale", run_id, "3")
        bench.launcher.well("scale", run_id, "1")
        wait_until(lambda: bench.running(run_id) == [0])
        for _ in range(2):
            assert "stopped, stop-requested" in bench.launcher.well("stop", run_id).stderr
        assert bench.started[0].wait(60) == 143
        assert "has ended" in bench.launcher.fails(2, "scale", run_id, "1")
        assert bench.listed() == {}
        assert bench.launcher.processes() == []

    def test_a_run_whose_launcher_was_killed_is_folded_by_whoever_looks(self, bench):
        run_id = bench.start()
        bench.started[0].kill()
        bench.started[0].wait(10)
        if bench.outlives_launcher:
            assert run_id in bench.listed()
            bench.end_well()
        wait_until(lambda: bench.status(run_id)["outcome"] is not None)
        state = "succeeded" if bench.outlives_launcher else "stopped"
        assert bench.status(run_id)["state"] == state
        assert bench.listed() == {}
        assert bench.launcher("logs", run_id).stdout.count("up\n") == 2

    def test_a_script_that_fails_ends_alike(self, bench):
        for name, (script, code, reason, headline, below) in ENDINGS.items():
            bench.write(script, f"{name}.py")
            done = bench.launcher(*bench.typed("run", f"{name}.py", "1"))
            told = done.stderr + done.stdout
            assert done.returncode == code, told
            outcome = bench.launcher.outcome
            assert (outcome["state"], outcome["cause"]) == ("failed", reason)
            headline = headline.format(run=outcome["run_id"], pod=r"[\w-]+(; |: )")
            assert re.search(f"^{headline}$", told, re.MULTILINE), told
            assert re.search(f"{below}$", told, re.MULTILINE), told

    def test_workers_are_given_the_same_everywhere_and_again_what_they_had(self, bench):
        bench.write(GIVEN)
        bench.write('NAME = "as submitted"\n', "helper.py")
        done = bench.launcher.well(*bench.typed("run", nnodes="2"), "--", "--lr", "0.2")
        check_found(done.stdout)
        (run_id,) = bench.launcher.run_ids()
        if (bench.folder / "runs" / run_id / "token").exists():
            check_folder(bench.folder / "runs" / run_id, done.stdout, done.stderr)
        given = given_in(done.stdout)
        for rank, found in enumerate(given):
            check_environment(bench.name, run_id, rank, found["env"])
            assert (found["code"], found["argv"]) == ("as submitted", ["--lr", "0.2"])
        bench.write('NAME = "edited"\n', "helper.py")
        again = given_in(bench.launcher.well("run", "--again", run_id).stdout)
        assert [(found["code"], found["argv"]) for found in again] == [
            ("as submitted", ["--lr", "0.2"])
        ] * 2

    def test_runs_in_a_hold_start_no_node(self, bench):
        if not bench.has_doors:
            pytest.skip(f"{bench.name} holds no nodes")
        size = ("--nnodes", "2", "--nproc-per-node", "1")
        bench.write(SUMS)
        bench.launcher.well("hold", "--name", "dev", "--on", bench.name, *size, *bench.words)
        (hold,) = bench.launcher.run_ids()
        nodes = process_table.find(**{RUN_ID: hold})
        argv = ("run", "train.py", "--in", "dev")
        for words, code in (((), 0), (("--", "fail"), 1)):
            done = bench.launcher(*argv, *words)
            assert done.returncode == code, done.stderr
            assert done.stdout.count("sum 2.0 left None") == 2, done.stdout
            assert bench.launcher.outcome["target"] == bench.name
        assert "ValueError: as asked" in done.stderr
        bench.write(WAITING)
        process = bench.begin(*argv)
        bench.wait_up()
        first = (bench.folder / "runs/latest").resolve().name
        told = bench.launcher.fails(2, *argv)
        assert f"dev is in use: {first} of " in told
        assert f"stop {first}" in told
        assert f"dev is in use: {first}" in bench.launcher.fails(2, "stop", "dev")
        assert f"used by {first}" in bench.launcher("ps").stdout
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert ", free" in bench.launcher("status", "dev").stdout
        # What is new in the code is sent, and runs at once.
        bench.write(SUMS.replace('"sum"', '"anew"'))
        assert bench.launcher.well(*argv).stdout.count("anew 2.0 left None") == 2
        assert {*nodes} <= {*process_table.find(**{RUN_ID: hold})}
        bench.launcher.well("stop", "dev")
        wait_until(lambda: bench.launcher.processes() == [])


def given_in(out: str) -> list[dict[str, Any]]:
    """What each rank was given."""
    lines = re.findall(r"^\[\d/(\d)\] given (.*)$", out, re.MULTILINE)
    assert len(lines) == 2, out
    return [json.loads(told) for _, told in sorted(lines)]
