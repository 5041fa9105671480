"""``launcher check train.py``: each rule, a script that breaks it, and one that nearly does."""

import os
import sys
from pathlib import Path

from launcher.contract.errors import ExitCode
from tests.programs import run_program

ROOT = Path(__file__).parents[5]


def test_a_run_tells_in_one_line_how_many_findings_its_script_has(tmp_path):
    script = tmp_path / "my train.py"
    script.write_text(
        "def later():\n    import torch.multiprocessing as mp\n    mp.spawn(later)\nprint('done')\n"
    )
    done = run_program(
        [sys.executable, "-m", "launcher", "run", "my train.py", "--on", "local"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert "done" in done.stdout
    told = [line for line in done.stderr.splitlines() if "finding" in line]
    assert len(told) == 1
    assert "launcher: 1 finding, of which 1 may fail or hang: " in told[0]
    assert told[0].endswith(" check 'my train.py'")
