"""Whole runs on local processes: real torchrun, real workers, real signals."""

import signal
import subprocess

from tests.launcher.runner import ROOT, WAITING
from tests.launcher.targets.local.test_run import is_up
from tests.waiting import wait_until


def test_under_nohup_a_run_goes_on_without_its_terminal_and_without_a_reader(launcher):
    launcher.write(WAITING.replace("300", "3"))
    process = subprocess.Popen(
        ["nohup", *launcher.argv("run", "job.yaml", "--on", "local")],
        cwd=launcher.folder,
        env=launcher.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: is_up(launcher))
    process.stderr.close()
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    assert launcher.outcome["cause"] == "completed"


def test_a_script_that_knows_nothing_of_this_project_runs(launcher):
    launcher.write((ROOT / "tests/examples/trainer.py").read_text())
    done = launcher.well("run", "job.yaml", "--on", "local", "--nnodes", "2")
    assert "done world_size=2" in done.stdout
