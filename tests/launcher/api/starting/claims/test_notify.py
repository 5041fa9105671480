"""``notify`` of a job: a run whose notices hang ends as it did, and its webhook knows."""

import json
from pathlib import Path

from tests.launcher.api.starting.test_notify import HANGS, hook
from tests.launcher.runner import Runner

FAILS_TWICE = """
import os, pathlib, time
tries = pathlib.Path("tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
if len(tries.read_text()) < 3:
    raise ValueError("not yet")
time.sleep(6)
"""


def test_a_run_whose_command_hangs_ends_as_it_did_and_tells_its_webhook(tmp_path, hook):
    """The first hangs while the training goes on, the last once the run has its outcome."""
    runner = Runner(tmp_path)
    hangs = "echo $$ >> pids; cp runs/latest/outcome.json seen.json; sleep 1000 & sleep 1001"
    notify = {"webhook": hook.url, "command": hangs, "restarts": 2}
    job = f"name: tiny\nnproc_per_node: 1\nnotify: {json.dumps(notify)}\nmax_restarts: 3\n"
    runner.write(FAILS_TWICE, job)
    done = runner.well("run", "job.yaml", "--on", "local")
    assert done.stderr.count(f"notify.command failed: {HANGS}") == 2
    assert "SUCCEEDED" in done.stderr
    assert json.loads((tmp_path / "seen.json").read_text()) == runner.outcome
    pids = (tmp_path / "pids").read_text().split()
    assert [pid for pid in pids if Path("/proc", pid).exists()] == []
    restarts, end = sorted(hook.told, key=lambda notice: notice["event"], reverse=True)
    assert (restarts["event"], sum(restarts["restarts"].values())) == ("restarts", 2)
    assert (end["event"], end["state"], end["exit_code"]) == ("end", "succeeded", 0)
    assert end["text"].startswith(f"{end['run_id']}: succeeded (completed)")
