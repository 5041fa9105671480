"""Runs of a fixed size whose nodes do not all end: real processes, real signals."""

import signal
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


@pytest.mark.parametrize(("index", "is_frozen"), [("1", True), ("0", False), ("1", False)])
def test_a_node_that_is_frozen_or_lost_while_the_other_finishes_is_started_again(
    launcher, index, is_frozen
):
    launcher.write(SCRIPT)
    process = launcher.start(*JOB)
    try:
        wait_until(lambda: both_up(launcher.folder))
        (run_id,) = launcher.run_ids()
        family = process_table.find(**{protocol.NODE_INDEX: index, protocol.RUN_ID: run_id})
        (launcher.folder / f"again-{index}").touch()
        if is_frozen:
            process_table.send(family, signal.SIGSTOP)
            (launcher.folder / "go").write_text(index)
        else:
            (launcher.folder / "go").write_text(index)
            process_table.send(find_agents(family), signal.SIGKILL)
        _, stderr = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, stderr.decode()
    if is_frozen:
        assert "node 1 still lives though the run is over" in stderr.decode()
        assert launcher.outcome["attempts"] == 2
    assert launcher.processes() == []
