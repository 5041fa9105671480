"""What becomes of nodes that are held, on every target whose nodes a test can kill."""

import os
import signal
from pathlib import Path

from launcher.runs.folder import RunFolder
from tests.held import SUMS, TRAINS, folder_of_hold, is_up
from tests.launcher.targets.contract.benches import on
from tests.launcher.targets.contract.contract import Bench
from tests.waiting import wait_until


def hold(bench: Bench, *words: str) -> Path:
    """A hold ``dev`` of two nodes; its folder."""
    size = ("--nnodes", "2", "--nproc-per-node", "1")
    bench.launcher.well("hold", "--name", "dev", "--on", bench.name, *size, *bench.words, *words)
    return folder_of_hold(bench.launcher)


@on("local", "docker", "hosts", "kubernetes")
def test_a_lost_node_is_replaced_while_a_run_uses_it_and_while_idle(bench):
    folder = hold(bench)
    bench.write(TRAINS)
    process = bench.begin("run", "train.py", "--in", "dev", "--set", "max_restarts=2")
    wait_until(lambda: is_up(bench.launcher, "up-0-0", "up-1-0"))
    bench.kill_node(folder, 1)
    wait_until(lambda: is_up(bench.launcher, "up-1-1"))
    bench.end_well()
    assert process.wait(60) == 0, (bench.folder / "err").read_text()
    assert (bench.folder / "out").read_text().count("trained") == 2
    lives = len([*(folder / "nodes/1").iterdir()])
    bench.kill_node(folder, 1)
    wait_until(lambda: (folder / f"nodes/1/{lives}/ready").exists())
    bench.write(SUMS)
    done = bench.launcher.well("run", "train.py", "--in", "dev")
    assert done.stdout.count("sum 2.0 left None") == 2
    bench.launcher.well("stop", "dev")


@on("local", "docker", "hosts", "slurm", "kubernetes")
def test_a_hold_that_nobody_uses_ends_and_leaves_nothing(bench):
    folder = hold(bench, "--idle-limit", "3")
    wait_until((folder / "outcome.json").exists)
    wait_until(lambda: bench.launcher.processes() == [])
    bench.write(SUMS)
    told = bench.launcher.fails(2, "run", "train.py", "--in", "dev")
    assert "the hold dev has ended (completed" in told
    assert "hold --name dev --nnodes 2" in told


@on("local", "docker", "slurm")
def test_a_hold_whose_launcher_is_killed_ends_by_its_limit(bench):
    folder = hold(bench, "--idle-limit", "3")
    os.kill(RunFolder(folder).launcher_pid() or 0, signal.SIGKILL)
    wait_until(lambda: bench.status(folder.name)["outcome"] is not None)
    wait_until(lambda: bench.launcher.processes() == [])
