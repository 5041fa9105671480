"""A chain of starts that Slurm cuts short gives the weights of one undisturbed run, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.claims.test_requeue import has_stepped, undisturbed, write_job
from tests.slurm.cluster import Cluster
from tests.slurm.typist import Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


def test_three_time_limits_in_a_row_leave_no_trace_in_the_weights(typist: Typist) -> None:
    # Slurm looks every 30 s: a start has 50 to 80 s until its notice. The steps take 272 s.
    write_job(typist, "allocation", steps=340, step_s=0.4, more=", time: 0:02:00")
    typist.start("run", "job.yaml", "--on", "slurm")
    code, _, err = typist.finish(600)
    assert code == 0, err
    words = [word.split() for word in typist.starts().values()]
    assert len(words) >= 4
    assert {then for _, then in words[:-1]} == {"requeued"}
    assert typist.outcome["metrics"]["weights_sha256"] == undisturbed(typist)
    typist.cluster.wait_idle()


def test_a_signal_that_reaches_the_workers_too_costs_no_step(tmp_path: Path) -> None:
    """With linuxproc Slurm's SIGTERM goes to the agent and to its workers at the same time."""
    cluster = Cluster("linuxproc")
    typist = Typist(tmp_path, cluster)
    try:
        cluster.start()
        write_job(typist, "allocation", steps=80, step_s=0.1, more=", exclusive: true")
        typist.start("run", "job.yaml", "--on", "slurm")
        wait_until(lambda: any((typist.run / "slurm").glob("*.job")))
        wait_until(lambda: has_stepped(typist, 0))
        cluster.submit("--partition=high", "--exclusive", "--nodes=3", script="sleep 2")
        code, _, err = typist.finish(180)
        assert code == 0, err
        assert typist.outcome["metrics"]["resumed_from_step"] > 0
        assert typist.outcome["metrics"]["weights_sha256"] == undisturbed(typist)
    finally:
        typist.end()
        cluster.close()
