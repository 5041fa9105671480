"""Commands about runs, typed as a person types them: which run is meant, and what is told of it."""

import pytest

from tests.disks import mounted
from tests.launcher.runner import WAITING, Runner
from tests.waiting import wait_until

LOCAL = ("run", "job.yaml", "--on", "local")


def detach(launcher: Runner) -> str:
    """Starts a run in the background; its id."""
    return launcher.well(*LOCAL, "--detach").stdout.strip()


def test_following_a_run_that_somebody_stops_ends_with_its_code_and_says_so(launcher):
    launcher.write(WAITING)
    run_id = detach(launcher)
    wait_until((launcher.folder / "runs" / run_id / "up-0").exists)
    logs = launcher.start("logs", "--follow")
    assert launcher("stop").returncode == 0
    _, said = logs.communicate(timeout=60)
    assert logs.returncode == 143
    assert f"{run_id}: STOPPED on local (stop-requested; exit code 143; ".encode() in said


@pytest.mark.mount
def test_a_full_disk_keeps_nobody_from_stopping_a_run(launcher, tmp_path):
    with mounted(tmp_path / "small") as disk:
        launcher.write(WAITING)
        done = launcher(*LOCAL, "--detach", "--runs", str(disk.path))
        run_id = done.stdout.strip()
        wait_until((disk.path / run_id / "up-0").exists)
        disk.fill()
        told = launcher.well("stop", "--runs", str(disk.path))
        assert told.stderr.startswith(f"{run_id}: stopped, ")
        disk.free()
