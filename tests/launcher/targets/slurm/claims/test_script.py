"""The batch script: whole, and run by bash with stand-ins for Slurm's commands."""

import pytest

from tests.launcher.targets.slurm.test_script import Job, plan


@pytest.mark.parametrize("stopped", [False, True])
def test_an_srun_that_outlives_its_agents_is_ended(tmp_path, stopped):
    made = plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2, stop_grace_s=2)
    job = Job(tmp_path, made, SRUN_SLACK_S=1, POLL_S=1)
    job.agents_end(143, *([] if stopped else [0]), srun=0)
    # The last line is not reached.
    does = job.folder / "bin/srun"
    stop = 'echo preempted >"$LAUNCHER_STOP_FILE"\n' if stopped else ""
    does.write_text(does.read_text().replace("exit 0\n", f"{stop}exec sleep 60\n"))
    assert job.run_once() == ("143 requeued" if stopped else "0 over")
    assert job.log().strip() == "launcher: srun goes on without its agents: killed"
