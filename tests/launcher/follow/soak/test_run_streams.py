"""Whole runs by what goes where: the workers' stdout to stdout, all other words to stderr."""

import os
import shlex
import signal
import subprocess

from tests.launcher.follow.claims.test_run_streams import MUCH, STUBBORN, TWO, in_shell
from tests.launcher.runner import PREFIX
from tests.waiting import wait_until


def test_a_reader_that_goes_does_not_end_the_run_which_says_so_once(launcher):
    launcher.write(MUCH.format(lines=20_000) + "print('done', file=__import__('sys').stderr)\n")
    done = in_shell(launcher, "RUN 2>err | head -1; echo ${PIPESTATUS[0]}", *TWO)
    first, code = done.stdout.splitlines()
    assert first in (f"[0/0] line 0 {'x' * 80}", f"[0/1] line 0 {'x' * 80}")
    assert code == "0", "the run's own code"
    told = (launcher.folder / "err").read_text()
    said = "stdout cannot be written any more (Broken pipe); the run goes on; its output: "
    assert told.count(said) == 1
    assert told.count("] done\n") == 2
    assert "Traceback" not in told
    assert len(launcher("logs").stdout.splitlines()) == 40_000
    assert in_shell(launcher, "RUN | head -1", "logs").stderr == ""


def test_ctrl_c_that_ends_the_reader_too_is_not_told_as_a_run_that_goes_on(launcher):
    launcher.write(STUBBORN, PREFIX.replace("stop_grace_s: 10", "stop_grace_s: 3"))
    line = f"{shlex.join(launcher.argv('run', 'job.yaml', '--on', 'local'))} 2>err | tee log"
    process = subprocess.Popen(
        ["bash", "-c", line],
        cwd=launcher.folder,
        env=launcher.env,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until((launcher.folder / "runs/latest/up-0").exists)
    wait_until(lambda: "on\n" in (launcher.folder / "log").read_text())
    os.killpg(process.pid, signal.SIGINT)
    process.wait(60)
    told = (launcher.folder / "err").read_text()
    assert "stdout cannot be written any more (Broken pipe); its output: " in told
    assert "goes on" not in told
    assert launcher.outcome["cause"] == "interrupted"
