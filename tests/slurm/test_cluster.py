"""The test cluster leaves nothing behind, whatever becomes of the tests."""

from __future__ import annotations

import shutil
import subprocess
import sys

import psutil
import pytest

from tests.launcher.runner import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm


@pytest.mark.slow  # of these tests themselves
def test_a_cluster_ends_with_the_process_that_made_it() -> None:
    script = """
import os, signal
from tests.slurm.cluster import NODES, Cluster
cluster = Cluster()
cluster.start()
cluster.submit(script="sleep 300")
print(cluster.folder, *(p.pid for p in cluster.all_processes()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    folder, *pids = done.stdout.split()
    try:
        assert len(pids) >= 5
        wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids))
    finally:
        shutil.rmtree(folder)
