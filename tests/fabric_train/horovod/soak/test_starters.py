"""Who started a process, read from the environment that each starter documents."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.fabric_train.horovod.test_starters import mpirun

ROOT = Path(__file__).parents[4]
PROGRAM = """
import os, torch, fabric_train.horovod as hvd
hvd.init()
total = hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum).item()
places = hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size
place = " ".join(str(place()) for place in places) + f" {total}"
os.write(1, (place + "\\n").encode())  # at once, because mpirun does not keep lines whole
"""
TWO = ("-np", "2")


@pytest.mark.mpi
def test_ranks_of_mpirun_meet_through_its_pmix_server(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mpirun(*TWO, sys.executable, str(tmp_path / "program.py"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 0 2 0 1 1.0", "1 2 1 2 0 1 1.0"]
    assert not done.stderr.strip()


@pytest.mark.mpi
def test_ranks_on_two_nodes_of_mpirun_meet_too(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    agent = tmp_path / "agent"  # starts the other node's daemon on this machine
    agent.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    agent.chmod(0o755)
    nodes = ("--mca", "plm_rsh_agent", str(agent), "--host", f"{socket.gethostname()}:2,other:2")
    mapped = (*nodes, "--map-by", "node", "-np", "3")
    done = mpirun(*mapped, sys.executable, str(tmp_path / "program.py"))
    assert done.returncode == 0, done.stderr
    places = ["0 3 0 2 0 2 3.0", "1 3 0 1 1 2 3.0", "2 3 1 2 0 1 3.0"]
    assert sorted(done.stdout.splitlines()) == places
