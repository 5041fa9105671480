"""``launcher import``: what people have, and the job file that it becomes."""

from tests.launcher.runner import Runner


def test_a_script_gets_a_job_file_that_runs_and_is_never_overwritten(tmp_path):
    runner = Runner(tmp_path)
    (tmp_path / "my train.py").write_text("import sys\nprint('given', sys.argv[1:])\n")
    made = runner.well("import", "my train.py", "-o", "job.yaml", "--", "--lr", "3")
    assert len(made.stderr.splitlines()) == 3
    assert "given ['--lr', '3']" in runner("run", "job.yaml", "--on", "local").stdout
    before = (tmp_path / "job.yaml").read_text()
    again = runner("import", "my train.py", "-o", "job.yaml")
    assert (again.returncode, (tmp_path / "job.yaml").read_text()) == (2, before)
