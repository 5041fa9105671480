"""The token of a run on Slurm, also of a script that a person submits."""

import re
import tarfile
from pathlib import Path

import pytest

from tests.launcher.run_token import JOB, LOOKING, check_folder, check_found
from tests.slurm.typist import ALLOCATION, ARRAY
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm


def test_the_nodes_of_an_allocation_meet_by_it_and_it_is_shown_nowhere(typist):
    typist.write(LOOKING, JOB + ALLOCATION)
    done = typist.well("run", "job.yaml", "--on", "slurm")
    check_found(done.stdout)
    check_folder(typist.folder / "runs/latest", done.stdout, done.stderr)


def test_elements_of_a_script_by_hand_agree_on_one(typist):
    typist.write(LOOKING, JOB + ARRAY)
    script = typist("render", "job.yaml", "--on", "slurm", "--embed").stdout
    path = typist.folder / "job.sh"
    path.write_text(script)
    (made,) = re.findall("^# By hand: mkdir -p ([^;]+)/slurm;", script, re.MULTILINE)
    Path(made, "slurm").mkdir(parents=True)
    with tarfile.open(Path(made, "code.tar.gz"), "w:gz") as code:
        code.add(typist.folder / "train.py", "train.py")
    typist.cluster.ask("sbatch", f"--chdir={typist.folder}", path)
    wait_until(lambda: len([*Path(made).glob("nodes/*/0/outcome.json")]) == 2, limit_s=90.0)
    check_found("".join(out.read_text() for out in Path(made).glob("nodes/*/0/*/*/stdout")))
    assert Path(made, "token").stat().st_mode & 0o777 == 0o600
