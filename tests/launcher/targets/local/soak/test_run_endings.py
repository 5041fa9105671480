"""Runs of a fixed size whose nodes do not all end: real processes, real signals."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.targets import process_table
from launcher.targets.local.target import find_agents
from tests.waiting import wait_until

SCRIPT = """
import os, pathlib, time
index = os.environ["LAUNCHER_NODE_INDEX"]
pathlib.Path(f"up-{index}").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.02)
if pathlib.Path("go").read_text() == index and not pathlib.Path("again-" + index).exists():
    time.sleep(600)
"""
"""The node whose index stands in ``go`` never ends, unless it has been told to."""
JOB = (
    *("run", "job.yaml", "--on", "local", "--nnodes", "2", "--set", "engine=agent"),
    *("--set", "agent.detection_limit_s=2", "--set", "stop_grace_s=1"),
)


def both_up(folder: Path) -> bool:
    return all((folder / f"up-{index}").exists() for index in range(2))


def test_a_node_that_stays_frozen_when_the_other_has_finished_is_started_again(launcher):
    launcher.write(SCRIPT)
    process = launcher.start(*JOB)
    try:
        wait_until(lambda: both_up(launcher.folder))
        (run_id,) = launcher.run_ids()
        for pid in process_table.find(**{protocol.NODE_INDEX: "1", protocol.RUN_ID: run_id}):
            os.kill(pid, signal.SIGSTOP)
        (launcher.folder / "again-1").touch()
        (launcher.folder / "go").write_text("1")
        _, stderr = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, stderr.decode()
    assert "node 1 still lives though the run is over" in stderr.decode()
    assert launcher.outcome["attempts"] == 2
    assert launcher.processes() == []


@pytest.mark.parametrize("lost", ["0", "1"])
def test_a_node_that_is_lost_while_the_other_finishes_does_not_hold_the_run_up(launcher, lost):
    launcher.write(SCRIPT)
    process = launcher.start(*JOB)
    try:
        wait_until(lambda: both_up(launcher.folder))
        (run_id,) = launcher.run_ids()
        (node,) = find_agents(
            process_table.find(**{protocol.NODE_INDEX: lost, protocol.RUN_ID: run_id})
        )
        began_at = time.monotonic()
        (launcher.folder / "go").write_text(lost)
        (launcher.folder / f"again-{lost}").touch()
        os.kill(node, signal.SIGKILL)
        _, stderr = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, stderr.decode()
    assert time.monotonic() - began_at < 120
    assert launcher.processes() == []
