"""``launcher profile`` as a person types it, on real runs of this machine."""

import pytest

from tests.launcher.commands.claims.test_profile import launcher
from tests.launcher.looks import check_traces, count_steps
from tests.launcher.runner import ROOT
from tests.waiting import wait_until

TRAINS = """
name: tiny
command: [-m, train, --epochs=2000, --profile=steps=2-3]
nproc_per_node: 2
start: fork
stop_grace_s: 5
"""


def test_a_training_traces_the_next_steps_of_all_ranks_and_those_that_its_job_names(launcher):
    (launcher.folder / "job.yaml").write_text(TRAINS)
    assert launcher("run", "job.yaml", "--on", "local", "--detach").returncode == 0
    run = (launcher.folder / "runs/latest").resolve()
    named = [run / f"profiles/rank-{rank}.trace.json" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in named))
    assert [count_steps(path) for path in named] == [2, 2]
    check_traces(launcher, "latest", 2)
    launcher("stop", "--grace", "0")
    over = launcher("profile", "latest")
    assert (over.returncode, "has ended" in over.stderr) == (2, True), over.stderr
    # Where a job goes on from its own checkpoints, no run is named to resume.
    assert f"run --again {run.name}" in over.stderr


@pytest.mark.parametrize(
    "script",
    [
        ("tests/gpu/programs/fitted.py", "ddp", "1000000"),
        ("examples/transformers_trainer.py", "--epochs", "100000"),
    ],
)
def test_a_script_with_a_callback_traces_its_next_steps(launcher, script):
    options = ("--on", "local", "--nproc-per-node", "2", "--set", "checkpoint_dir=checkpoints")
    options += ("--set", "env.GPU_DRY=1", "--detach")
    launcher.well("run", str(ROOT / script[0]), *options, "--", *script[1:])
    run = (launcher.folder / "runs/latest").resolve()
    wait_until(lambda: any("first-step" in p.read_text() for p in run.glob("ledger/train-*")))
    check_traces(launcher, "latest", 2)
