"""Whole runs whose launcher writes into a pipe that is open, and that nobody reads."""

import os
import signal

from launcher.contract import protocol
from launcher.targets import process_table
from launcher.targets.local.target import find_agents
from tests.waiting import wait_until

LINES = 5000
MUCH = f"""
import os, pathlib
for number in range({LINES}):
    print("line", number, "x" * 80)
print("all said", flush=True)
pathlib.Path(f"up-{{os.environ['LAUNCHER_NODE_INDEX']}}-{{os.environ['LAUNCHER_INCARNATION']}}").touch()
"""
"""Half a megabyte; a pipe holds 64 kB."""
WAITING = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\ntime.sleep(300)\n"


def test_a_lost_node_is_replaced_and_a_stop_is_heard_while_nobody_reads(launcher, tmp_path):
    launcher.write(MUCH + WAITING)
    process = launcher.start(
        *("run", "job.yaml", "--on", "local", "--nnodes", "1:2", "--set", "engine=agent"),
        *("--set", "agent.detection_limit_s=2"),
    )
    wait_until(lambda: (tmp_path / "up-0-0").exists() and (tmp_path / "up-1-0").exists())
    (run_id,) = launcher.run_ids()
    (node,) = find_agents(process_table.find(**{protocol.NODE_INDEX: "1", protocol.RUN_ID: run_id}))
    os.kill(node, signal.SIGKILL)
    wait_until(lambda: (tmp_path / "up-1-1").exists())
    assert launcher("stop", run_id).returncode == 0
    assert process.wait(timeout=60) == 143
    assert launcher.outcome["cause"] == "stop-requested"
    assert launcher.processes() == []
