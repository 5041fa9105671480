"""``launcher import``: what people have, and the job file that it becomes."""

from __future__ import annotations

from tests.launcher.runner import Runner


def test_init_writes_a_job_that_runs_and_never_overwrites(tmp_path):
    runner = Runner(tmp_path)
    (tmp_path / "my train.py").write_text("import sys\nprint('given', sys.argv[1:])\n")
    made = runner.well("init", "my train.py", "--", "--lr", "3")
    assert len(made.stdout.splitlines()) == 3
    assert "given ['--lr', '3']" in runner("run", "job.yaml", "--on", "local").stdout
    before = (tmp_path / "job.yaml").read_text()
    again = runner("init", "my train.py")
    assert (again.returncode, (tmp_path / "job.yaml").read_text()) == (2, before)
