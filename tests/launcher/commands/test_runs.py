"""Commands about runs, typed as a person types them: which run is meant, and what is told of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import InputError, RunHandle
from launcher.api import stopping
from launcher.api.listing import list_runs, render_table
from launcher.contract.errors import TargetError
from launcher.contract.reasons import Reason
from launcher.follow.loop import write_outcome
from launcher.follow.target import ListedRun
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import LAUNCHER_FILE, RunFolder, find_run
from launcher.runs.outcome import Outcome
from tests.disks import mounted
from tests.launcher.runner import ROOT, WAITING, Runner
from tests.programs import run_program
from tests.waiting import wait_until

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
    assert said.decode().startswith(f"{run_id} is left as it is; end it: ")
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


def test_following_a_run_that_somebody_stops_ends_with_its_code_and_says_so(
    launcher: Runner,
) -> None:
    launcher.write(WAITING)
    run_id = detach(launcher)
    wait_until((launcher.folder / "runs" / run_id / "up-0").exists)
    logs = launcher.start("logs", "--follow")
    assert launcher("stop").returncode == 0
    _, said = logs.communicate(timeout=60)
    assert logs.returncode == 143
    assert f"{run_id}: stopped, stop-requested, exit code 143; see: ".encode() in said


def test_logs_of_a_rank_that_the_run_does_not_have_are_refused(launcher: Runner) -> None:
    launcher.write("print('up')\n")
    assert launcher(*LOCAL, "--nproc-per-node", "2").returncode == 0
    assert launcher("logs", "--rank", "1").stdout == "[0/1] up\n"
    told = launcher("logs", "--rank", "7")
    (run_id,) = launcher.run_ids()
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"error: --rank 7: {run_id} has ranks 0 to 1\n  fix: --rank 1\n"


def test_logs_of_a_rank_that_an_elastic_run_had_no_nodes_for_are_refused(
    make_plan: Callable[..., LaunchPlan], tmp_path: Path
) -> None:
    plan = replace(make_plan(nnodes="1:4", nproc_per_node=1), run_dir=f"{tmp_path}/digits-0a1b2c")
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 1.0)
    for index in range(2):
        (run.node_dir(index, 0) / f"attempt-0/rank-{index}").mkdir(parents=True)
    write_outcome(run, plan, Outcome(reason=Reason.COMPLETED), 2.0)
    assert list(RunHandle(run.path).logs(rank=1)) == []
    with pytest.raises(InputError, match="--rank 3: digits-0a1b2c has ranks 0 to 1"):
        list(RunHandle(run.path).logs(rank=3))


@pytest.mark.slow
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
    told = launcher("stop", "tiny").stderr
    assert told.startswith(f"error: no run 'tiny': {where}\n  fix: {fix}")
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
    done = launcher("stop")
    assert done.stderr.startswith(f"{second}: stopped, stop-requested")
    assert f"\n{first} still runs; end it: python -m launcher stop {first}\n" in done.stderr
    done = launcher("stop")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith(f"{first}: stopped, stop-requested")
    assert launcher("stop").returncode == 0, "with none that goes on, the newest"


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [
        (0.4, "0 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (234.0, "3 min"),
        (7199.0, "119 min"),
        (7200.0, "2 h"),
        (172_799.0, "47 h"),
        (172_800.0, "2 d"),
        (1e7, "115 d"),
    ],
)
def test_the_age_of_a_run_has_a_unit_that_fits(age_s: float, shown: str) -> None:
    row = ListedRun(run_id="tiny-1", state="running", age_s=age_s, folder="")
    assert render_table([row]).splitlines()[1].endswith(f" {shown}")


@pytest.mark.parametrize("module", ["launcher.commands.cli", "launcher.api.choose_target"])
def test_ctrl_c_while_modules_are_imported_is_no_stack_trace(module: str, tmp_path: Path) -> None:
    """A signal that this process sends itself, in the middle of the imports."""
    program = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["launcher", "ps"]
from launcher.__main__ import main
main()
"""
    done = run_program(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def type_elsewhere(launcher: Runner, *words: str) -> subprocess.CompletedProcess[str]:
    """As in a container that has this folder: other processes cannot be seen there.

    What it leaves in the background ends with it.
    """
    argv = ["unshare", "--pid", "--fork", "--mount-proc", *launcher.argv(*words)]
    return run_program(argv, cwd=launcher.folder, env=launcher.env, timeout=60)


@pytest.mark.mount
def test_a_run_of_another_container_is_not_taken_for_dead_and_can_be_stopped_from_here(
    launcher: Runner,
) -> None:
    launcher.write(WAITING)
    run_id = detach(launcher)
    assert f"{run_id}  local   1      running" in type_elsewhere(launcher, "ps").stdout
    assert f"{run_id}: running on local" in type_elsewhere(launcher, "status").stdout
    stopped = type_elsewhere(launcher, "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert f"{run_id}: stopped, stop-requested" in stopped.stderr
    assert not launcher.processes()


def test_a_launcher_elsewhere_that_does_not_answer(
    launcher: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.write("print('done')")
    assert launcher(*LOCAL).returncode == 0
    run = find_run(launcher.folder / "runs", "latest")
    (run.path / "outcome.json").unlink()
    mark = json.loads((run.path / LAUNCHER_FILE).read_text())
    (run.path / LAUNCHER_FILE).write_text(json.dumps({**mark, "sees": "b:p", "machine": "other"}))
    monkeypatch.setattr(stopping, "MARGIN_S", -14.0)  # of the grace's 15 s
    with pytest.raises(TargetError, match="on another machine, does not answer"):
        stopping.stop_run(run, 0.0)
    assert run.read_outcome() is None


def test_no_time_is_negative_where_a_clock_was_set_back(
    make_plan: Callable[..., LaunchPlan], tmp_path: Path
) -> None:
    later = time.time() + 3600
    plan = replace(make_plan(), run_dir=f"{tmp_path}/digits-0a1b2c")
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", later)
    outcome = write_outcome(run, plan, Outcome(reason=Reason.COMPLETED), later - 60)
    assert outcome.duration_s == 0.0
    assert [row.age_s for row in list_runs(tmp_path, everything=True)] == [0.0]


@pytest.mark.mount
def test_a_full_disk_keeps_nobody_from_stopping_a_run(launcher: Runner, tmp_path: Path) -> None:
    with mounted(tmp_path / "small") as disk:
        launcher.write(WAITING)
        done = launcher(*LOCAL, "--detach", "--runs", str(disk.path))
        run_id = done.stdout.strip()
        wait_until((disk.path / run_id / "up-0").exists)
        disk.fill()
        told = launcher("stop", "--runs", str(disk.path))
        assert told.returncode == 0, told.stderr
        assert told.stderr.startswith(f"{run_id}: stopped, ")
        disk.free()
