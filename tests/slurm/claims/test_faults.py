"""Runs on Slurm while a part of the cluster is away: each ends as it would, and leaves nothing."""

import json
import os
import signal

import pytest

from tests.slurm.typist import ALLOCATION
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
ELASTIC = "nnodes: 1:2\n"


def test_a_job_that_was_submitted_and_not_recorded_is_found_by_its_comment(typist):
    """As after a launcher that was killed between sbatch's answer and its own note of it."""
    typist.write("pass", "name: tiny\nslurm: {extra: [--begin=now+1hour]}\n")
    assert typist("run", "job.yaml", "--on", "slurm", "--detach").returncode == 0
    (run_id,) = typist.run_ids()
    (record,) = (typist.run / "slurm").glob("*.job")
    os.kill(typist.status(run_id)["launcher_pid"], signal.SIGKILL)
    wait_until(lambda: typist.status(run_id)["launcher_pid"] is None)
    record.unlink()
    assert typist.status(run_id)["state"] == "running"
    assert record.exists()
    record.unlink()
    stopped = typist("stop", run_id)
    assert (stopped.returncode, typist.cluster.queue()) == (0, []), stopped.stderr


def test_a_run_whose_launcher_was_killed_is_found_followed_and_stopped(typist):
    run_id = typist.start_seen(ELASTIC + ALLOCATION, 2)
    typist.started[-1].send_signal(signal.SIGKILL)
    typist.started[-1].wait(10)
    listed = json.loads(typist("ps", "--json").stdout)
    assert [row["run_id"] for row in listed] == [run_id]
    assert typist.status(run_id)["state"] in ("running", "orphaned")
    assert typist("report", run_id).returncode == 0
    following = typist.start("logs", "--follow", run_id)
    stopped = typist("stop", run_id)
    assert (stopped.returncode, "stop-requested" in stopped.stderr) == (0, True), stopped.stderr
    following.wait(30)
    assert typist.status(run_id)["state"] == "stopped"
    assert typist.cluster.queue() == []
    assert typist.left() == []
