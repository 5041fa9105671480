"""The command line as a person types it: one process a test, its exit code and its words."""

import sys
from importlib.metadata import version

from tests.launcher.commands.test_cli import folder, launcher


def test_a_job_that_says_nothing_runs_in_this_python_whose_name_and_torch_are_told(folder):
    (folder / "train.py").write_text("print('trained')\n")
    done = launcher("run", "job.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    first = done.stderr.splitlines()[0]
    torch = version("torch")
    assert f"running on local processes, {sys.executable} with torch {torch}," in first
    assert first.endswith("; made the folder runs for its runs")
    again = launcher("run", "job.yaml", cwd=folder)
    assert "made the folder" not in again.stderr
