"""Commands about runs, typed as a person types them: which run is meant, and what is told of it."""

import json
import signal
import subprocess

import pytest

from launcher.api import stopping
from launcher.contract import protocol
from launcher.contract.errors import TargetError
from launcher.runs.folder import LAUNCHER_FILE, find_run
from tests.launcher.commands.claims.test_runs import LOCAL, detach
from tests.launcher.runner import WAITING, Runner
from tests.programs import run_program
from tests.waiting import wait_until


def test_ctrl_c_ends_the_logs_and_says_that_the_run_goes_on(launcher):
    launcher.write(WAITING)
    run_id = detach(launcher)
    following = launcher.start("logs", "-f")
    assert following.stdout.readline() == b"[0/0] up\n"
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=60)
    assert said.decode().startswith(f"{run_id} is left as it is; end it: ")
    assert said.decode().endswith(f" stop {run_id}\n")
    assert following.returncode == 130
    assert launcher.processes(), "the run goes on"
    assert launcher("stop").returncode == 0


def test_ctrl_c_while_a_run_stops_says_that_it_may_still_run(launcher):
    launcher.write(WAITING.replace("SIG_DFL", "SIG_IGN"))
    run_id = detach(launcher)
    following = launcher.start("logs", "-f")
    assert following.stdout.readline() == b"[0/0] up\n"
    stopping_it = launcher.start("stop")
    wait_until((launcher.folder / "runs" / run_id / protocol.STOP_RUN_FILE).exists)
    stopping_it.send_signal(signal.SIGINT)
    _, stderr = stopping_it.communicate(timeout=60)
    asked, interrupted = stderr.decode().splitlines()
    assert asked.startswith(f"{run_id} was asked to stop, and may still run; look: ")
    assert asked.endswith(f" status {run_id}")
    assert (interrupted, stopping_it.returncode) == ("interrupted", 130)
    assert launcher("stop", run_id, "--grace", "0").returncode == 0
    following.communicate(timeout=60)


def test_following_a_run_that_fails_ends_with_its_code_and_says_so(launcher):
    launcher.write("import time; time.sleep(1); print('so far', flush=True); raise SystemExit(7)\n")
    run_id = detach(launcher)
    done = launcher("logs", "--follow")
    assert done.stdout == "[0/0] so far\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"launcher: {run_id}: FAILED on local (training-failed; ")
    assert last.endswith(f" report {run_id}")
    assert done.returncode == 1
    assert launcher("logs").returncode == 0, "without --follow the output is what was asked for"


def test_in_another_folder_it_is_told_where_runs_are_looked_for(launcher, tmp_path):
    launcher.write(WAITING)
    run_id = detach(launcher)
    runs = launcher.folder / "runs"
    launcher.folder = elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = f"no runs in {elsewhere}/runs, which is not there"
    fix = "cd to the folder where you started it, or --runs DIR"
    for words in (("ps",), ("ps", "--all")):
        said = launcher(*words).stdout
        assert said.startswith(f"{where}\n  fix: {fix}\n"), said
        assert f"{run_id} runs here; see: python -m launcher status {run_id} --runs {runs}" in said
    for word in ("stop", "status", "logs", "report"):
        done = launcher.fails(2, word)
        assert done.startswith(f"error: {where}\n  fix: {fix}; "), done
    told = launcher("stop", "tiny").stderr
    assert told.startswith(f"error: no run 'tiny': {where}\n  fix: {fix}")
    assert launcher("stop", "--runs", str(runs)).returncode == 0
    launcher.folder = tmp_path
    assert launcher("ps").stdout.startswith("no runs go on; those that ended: ")


def test_stop_ends_runs_that_go_on_before_newer_ones_that_have_ended(launcher):
    launcher.write(WAITING)
    first, second = detach(launcher), detach(launcher)
    runs = launcher.folder / "runs"
    wait_until(lambda: all((runs / name / "up-0").exists() for name in (first, second)))
    launcher.write("print('ended')\n")
    assert launcher(*LOCAL).returncode == 0
    done = launcher("stop")
    assert done.stderr.startswith(f"{second}: stopped, stop-requested")
    assert f"\n{first} still runs; end it: python -m launcher stop {first}\n" in done.stderr
    done = launcher("stop")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith(f"{first}: stopped, stop-requested")
    assert launcher("stop").returncode == 0, "with none that goes on, the newest"


def type_elsewhere(launcher: Runner, *words: str) -> subprocess.CompletedProcess[str]:
    """As in a container that has this folder: other processes cannot be seen there.

    What it leaves in the background ends with it.
    """
    argv = ["unshare", "--pid", "--fork", "--mount-proc", *launcher.argv(*words)]
    return run_program(argv, cwd=launcher.folder, env=launcher.env, timeout=60)


@pytest.mark.mount
def test_a_run_of_another_container_is_not_taken_for_dead_and_can_be_stopped_from_here(launcher):
    launcher.write(WAITING)
    run_id = detach(launcher)
    assert f"{run_id}  local   1      running" in type_elsewhere(launcher, "ps").stdout
    assert f"{run_id}: RUNNING on local" in type_elsewhere(launcher, "status").stdout
    stopped = type_elsewhere(launcher, "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert f"{run_id}: stopped, stop-requested" in stopped.stderr
    assert not launcher.processes()
