"""Commands that are typed where no run is."""

from __future__ import annotations

import os
import sys
<<<<<<< HEAD
import time
from dataclasses import replace
=======
>>>>>>> wt-f
from pathlib import Path

import pytest

<<<<<<< HEAD
from launcher import InputError, RunHandle
from launcher.api.listing import list_runs, render_table
from launcher.contract.reasons import Reason
from launcher.follow.loop import write_outcome
from launcher.follow.target import ListedRun
from launcher.runs.folder import RunFolder
from launcher.runs.outcome import Outcome
from tests.launcher.runner import ROOT, Runner
from tests.programs import run_program

LOCAL = ("run", "job.yaml", "--on", "local")


def detach(launcher: Runner) -> str:
    """Starts a run in the background; its id."""
    done = launcher.well(*LOCAL, "--detach")
    return done.stdout.strip()


def test_logs_of_a_rank_that_an_elastic_run_had_no_nodes_for_are_refused(make_plan, tmp_path):
    plan = replace(make_plan(nnodes="1:4", nproc_per_node=1), run_dir=f"{tmp_path}/digits-0a1b2c")
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 1.0)
    for index in range(2):
        (run.node_dir(index, 0) / f"attempt-0/rank-{index}").mkdir(parents=True)
    write_outcome(run, plan, Outcome(reason=Reason.COMPLETED), 2.0)
    assert list(RunHandle(run.path).logs(rank=1)) == []
    with pytest.raises(InputError, match="--rank 3: digits-0a1b2c has ranks 0 to 1"):
        list(RunHandle(run.path).logs(rank=3))


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
def test_the_age_of_a_run_has_a_unit_that_fits(age_s, shown):
    row = ListedRun(run_id="tiny-1", state="running", age_s=age_s, folder="")
    assert render_table([row]).splitlines()[1].endswith(f" {shown}")

=======
from tests.launcher.runner import ROOT
from tests.programs import run_program

>>>>>>> wt-f

@pytest.mark.parametrize("module", ["launcher.commands.cli", "launcher.api.choose_target"])
def test_ctrl_c_while_modules_are_imported_is_no_stack_trace(module, tmp_path):
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
<<<<<<< HEAD


def test_no_time_is_negative_where_a_clock_was_set_back(make_plan, tmp_path):
    later = time.time() + 3600
    plan = replace(make_plan(), run_dir=f"{tmp_path}/digits-0a1b2c")
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", later)
    outcome = write_outcome(run, plan, Outcome(reason=Reason.COMPLETED), later - 60)
    assert outcome.duration_s == 0.0
    assert [row.age_s for row in list_runs(tmp_path, everything=True)] == [0.0]
=======
>>>>>>> wt-f
