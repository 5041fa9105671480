"""A batch script and the job file that ``launcher import`` makes of it, run beside each other."""

import re
import sys

import pytest

from tests.launcher.manifests.imports.losses import LOSSES
from tests.programs import run_program
from tests.slurm.cluster import find_free_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm
SCRIPT = """#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=10
#SBATCH --output=original.out
export OMP_NUM_THREADS=1
PORT={port}
srun {python} -m torch.distributed.run --nnodes $SLURM_NNODES --nproc-per-node 1 \\
    --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID --rdzv-endpoint 127.0.0.1:$PORT \\
    train.py --lr 0.5
"""


def test_a_batch_script_trains_as_its_import(typist):
    (typist.folder / "train.py").write_text(LOSSES)
    script = SCRIPT.format(port=find_free_ports(1)[0], python=sys.executable)
    (typist.folder / "tiny.sbatch").write_text(script)
    argv = ["sbatch", "--wait", "tiny.sbatch"]
    # On a busy machine one torchrun may leave with the store before the other ends: not checked.
    run_program(argv, cwd=typist.folder, env=typist.env, timeout=200, check=False)
    original = re.findall(r"\d \d\.\d+", (typist.folder / "original.out").read_text())
    assert len(original) == 5

    typist.well("import", "tiny.sbatch", "-o", "job.yaml")
    typist.start("run", "job.yaml", "--on", "slurm")
    code, out, err = typist.finish(200)
    assert code == 0, err
    assert re.findall(r"\d \d\.\d+", out) == original
    wait_until(lambda: typist.cluster.node_state("n1") == "idle")
