"""``launcher import``: what people have, and the job file that it becomes."""

import re
import sys

import pytest

from tests.launcher.manifests.imports.losses import LOSSES
from tests.launcher.runner import Runner
from tests.programs import run_program
from tests.slurm.cluster import find_free_ports


def test_the_command_takes_a_line_a_file_or_stdin_and_overwrites_nothing(tmp_path):
    runner = Runner(tmp_path)
    (tmp_path / "two words.txt").write_text("torchrun --nproc-per-node=2 train.py\n")
    line = ("torchrun", "--nproc-per-node=2", "train.py")
    behind = runner("import", "--", *line).stdout
    quoted, file = runner("import", " ".join(line)).stdout, runner("import", "two words.txt").stdout
    assert {text.partition("\n")[2] for text in (behind, quoted, file)} == {
        "\nname: train\ncommand: [train.py]\nnproc_per_node: 2\n"
    }
    assert runner("import", "-o", "job.yaml", "--", *line).returncode == 0
    again = runner("import", "-o", "job.yaml", "--", "torchrun", "other.py")
    assert (again.returncode, "job.yaml is there already" in again.stderr) == (2, True)
    assert "command: [train.py]" in (tmp_path / "job.yaml").read_text()
    nothing = runner("import", "-o", "none.yaml", "--", "torchrun")
    assert (nothing.returncode, (tmp_path / "none.yaml").exists()) == (2, False)


TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node=2 train.py --lr 0.5"
ACCELERATE = "-m accelerate.commands.launch --multi_gpu --num_machines=1 --num_processes=2"
MPIRUN = "mpirun --allow-run-as-root --oversubscribe -np 2 -x MASTER_ADDR=127.0.0.1"
DOCKER = "docker run --rm --user 0 -e OMP_NUM_THREADS=1 -v $PWD:/w -w /w fabric-train:cpu python"


@pytest.mark.parametrize(
    ("line", "target"),
    [
        (f"OMP_NUM_THREADS=1 {sys.executable} {TORCHRUN}", "local"),
        (f"OMP_NUM_THREADS=1 {sys.executable} {ACCELERATE} train.py --lr 0.5", "local"),
        pytest.param(f"{MPIRUN} -x MASTER_PORT=PORT {sys.executable} train.py --lr 0.5", "local",
            marks=pytest.mark.mpi),
        pytest.param(f"{DOCKER} {TORCHRUN}", "docker", marks=pytest.mark.docker),
    ],
    ids=["torchrun", "accelerate", "mpirun", "docker"],
)  # fmt: skip
def test_what_was_imported_trains_as_the_original(tmp_path, line, target):
    runner = Runner(tmp_path)
    (tmp_path / "train.py").write_text(LOSSES)
    (tmp_path / "line.txt").write_text(line.replace("PORT=PORT", f"PORT={find_free_ports(1)[0]}"))
    original = run_program(["sh", "line.txt"], cwd=tmp_path, env=runner.env)
    assert original.returncode == 0, original.stderr
    runner.well("import", "line.txt", "-o", "job.yaml")
    ours = runner.well("run", "job.yaml", "--on", target)
    assert re.findall(r"\d \d\.\d+", ours.stdout) == re.findall(r"\d \d\.\d+", original.stdout)
    assert len(re.findall(r"\d \d\.\d+", ours.stdout)) == 5
