"""The example scripts under torchrun itself; `launcher run` runs them, and failing.py, as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
DEADLINE_S = 240


def run_under_torchrun(folder: Path, script: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of two workers, far from this project's own modules."""
    foreign = ("LAUNCHER_", "PET_", "TORCHELASTIC_", "LT_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
            str(FOLDER / script),
        ],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow  # the launcher runs the same scripts in every CI
@pytest.mark.parametrize("script", ["raw_ddp.py", "fabric.py", "trainer.py"])
def test_an_example_trains_in_one_world_of_two(tmp_path, script):
    code, out, err = run_under_torchrun(tmp_path, script)
    assert code == 0, err
    assert out.count("done world_size=2") == 1


@pytest.mark.parametrize("script", ["raw_ddp.py", "fabric.py", "trainer.py", "failing.py"])
def test_an_example_knows_nothing_of_this_project(script):
    imported = [
        line.split()[1].partition(".")[0]
        for line in (FOLDER / script).read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert set(imported) <= {"os", "sys", "torch", "lightning"}
