"""A node that a person adds to a run that goes on."""

from __future__ import annotations

import subprocess

from tests.launcher.follow.claims.test_scaling import ELASTIC
from tests.waiting import wait_until


def test_a_run_that_cannot_take_a_node_in_is_told_apart(launcher):
    launcher.write("print('done')\n")
    launcher("run", "job.yaml", "--on", "local", "--nnodes", "1:2")
    assert "has ended" in launcher("env", "--join", "latest").stderr
    launcher("run", "job.yaml", "--on", "local")
    assert "fixed number of nodes" in launcher("env", "--join", "latest").stderr
    both = launcher("env", "job.yaml", "--join", "latest")
    assert (both.returncode, "or --join RUN: both were given" in both.stderr) == (2, True)


def test_a_node_joins_by_hand_where_a_planned_one_is_gone_and_not_before(launcher):
    launcher.write(ELASTIC)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nnodes", "1:2")
    wait_until(lambda: (launcher.folder / "world-2-1-0").exists())
    told = launcher("env", "--join", "latest")
    assert (told.returncode, told.stdout) == (2, "")
    assert "has 2 nodes, and its nnodes allows 2\n  fix: " in told.stderr
    (run,) = launcher.run_ids()
    assert not (launcher.folder / "runs" / run / "nodes/2").exists()
    assert launcher("scale", "1").returncode == 0
    wait_until(lambda: (launcher.folder / "world-1-0-0").exists())
    script = launcher("env", "--join", "latest").stdout
    joined = subprocess.Popen(["sh", "-c", f"{script} wait"], env=launcher.env)
    wait_until(lambda: (launcher.folder / "world-2-2-0").exists())
    (launcher.folder / "go").touch()
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr.decode()
    assert joined.wait(30) == 0
