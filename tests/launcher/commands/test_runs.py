"""Commands about runs, typed as a person types them: which run is meant, and what is told of it."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.launcher.runner import WAITING, Runner, wait_until

LOCAL = ("run", "job.yaml", "--on", "local")


def detach(launcher: Runner) -> str:
    """Starts a run in the background; its id."""
    done = launcher(*LOCAL, "--detach")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ctrl_c_ends_the_logs_and_says_that_the_run_goes_on(launcher: Runner) -> None:
    launcher.write(WAITING)
    run_id = detach(launcher)
    following = launcher.start("logs", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == b"[0/0] up\n"
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=60)
    assert said.decode().startswith(f"{run_id} goes on; end it: ")
    assert said.decode().endswith(f" stop {run_id}\n")
    assert following.returncode == 130
    assert launcher.processes(), "the run goes on"
    assert launcher("stop").returncode == 0


def test_following_a_run_that_fails_ends_with_its_code_and_says_so(launcher: Runner) -> None:
    launcher.write("import time; time.sleep(1); print('so far', flush=True); raise SystemExit(7)\n")
    run_id = detach(launcher)
    done = launcher("logs", "--follow")
    assert done.stdout == "[0/0] so far\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"launcher: {run_id}: failed, training-failed, exit code 1; see: ")
    assert last.endswith(f" report {run_id}")
    assert done.returncode == 1
    assert launcher("logs").returncode == 0, "without --follow the output is what was asked for"


def test_in_another_folder_it_is_told_where_runs_are_looked_for(
    launcher: Runner, tmp_path: Path
) -> None:
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
        done = launcher(word)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {where}\n  fix: {fix}; "), done.stderr
    assert launcher("stop", "tiny").stderr.startswith(f"error: no run 'tiny' in runs\n  fix: {fix}")
    above = launcher("status", "--runs", str(tmp_path))
    assert f"\n  fix: they are in the folder below: --runs {runs}; " in above.stderr
    assert launcher("stop", "--runs", str(runs)).returncode == 0
    launcher.folder = tmp_path
    assert launcher("ps").stdout.startswith("no runs go on; those that ended: ")


def test_stop_ends_runs_that_go_on_before_newer_ones_that_have_ended(launcher: Runner) -> None:
    launcher.write(WAITING)
    first, second = detach(launcher), detach(launcher)
    runs = launcher.folder / "runs"
    wait_until(lambda: all((runs / name / "up-0").exists() for name in (first, second)))
    launcher.write("print('ended')\n")
    assert launcher(*LOCAL).returncode == 0
    several = launcher("stop", "tiny")
    assert several.returncode == 2
    assert several.stderr.startswith(f"error: 'tiny' may be any of {first}, {second}\n  fix: ")
    done = launcher("stop")
    assert done.stderr.startswith(f"{second}: stopped, stop-requested")
    assert f"\n{first} still runs; end it: python -m launcher stop {first}\n" in done.stderr
    done = launcher("stop", "tiny")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith(f"{first}: stopped, stop-requested")
    assert launcher("stop").returncode == 0, "with none that goes on, the newest"
