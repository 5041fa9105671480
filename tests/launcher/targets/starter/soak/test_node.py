"""``launcher node``, started by hand and by a real mpirun, as real processes."""

import signal

import pytest

from launcher.contract import protocol
from tests.launcher.targets.starter.test_node import JOB, finish, starting
from tests.waiting import wait_until

ALONE = """
import os, sys
print("alone", flush=True)
sys.exit(int(os.environ.get("CODE", "0")))
"""
WAITING = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("up", flush=True)
pathlib.Path(os.environ["RUN_DIR"], "up-" + os.environ["LAUNCHER_NODE_INDEX"]).touch()
time.sleep(300)
"""


def test_a_node_runs_the_job_again_and_again_and_the_folder_tells_of_each(starting):
    starting.launcher.write(ALONE, JOB)
    words = ("job.yaml", "--nnodes", "1", "--run-id", "one")
    code, out, err = finish(starting.node(*words, LAUNCHER_NODE_INDEX="0"))
    assert (code, "[0/0] alone\n" in out) == (0, True), err
    assert "launcher: run one: nnodes 1 x nproc_per_node 1 on cpu; folder" in err
    assert "one: SUCCEEDED on starter" in starting.launcher("status", "one").stdout
    assert "alone" in starting.launcher("logs", "one").stdout
    # The same run goes on, as one whose job was requeued; its exit code is the agent's.
    code, _, err = finish(starting.node(*words, LAUNCHER_NODE_INDEX="0", CODE="7"))
    assert (code, "training-failed" in err) == (1, True), err
    run = starting.launcher.folder / "runs/one"
    assert sorted(p.name for p in (run / protocol.NODES_DIR / "0").iterdir()) == ["0", "1"]
    assert (run / "outcome-0.json").exists()
    # Another job does not take it over.
    code, _, err = finish(starting.node(*words, "--", "--lr", "3", LAUNCHER_NODE_INDEX="0"))
    assert code == 2
    assert "one was started before with another job or other options" in err
    assert "--run-id one-2" in err


@pytest.mark.parametrize(
    ("signum", "expected", "reason"),
    [
        (signal.SIGTERM, 143, "preempted"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_a_signal_of_the_starter_ends_the_node(starting, signum, expected, reason):
    starting.launcher.write(WAITING, JOB)
    env = {"LAUNCHER_NODE_INDEX": "0"}
    node = starting.node("job.yaml", "--nnodes", "1", "--run-id", "x", **env)
    wait_until((starting.launcher.folder / "runs/x/up-0").exists)
    node.send_signal(signum)
    code, _, err = finish(node)
    assert (code, reason in err) == (expected, True), err


@pytest.mark.parametrize(
    ("words", "index", "said", "fix"),
    [
        ("job.yaml", "", "cannot find out which node this is", "srun --ntasks-per-node=1"),
        ("job.yaml", "0", "your script does not tell how many nodes", "--nnodes N"),
        ("job.yaml --nnodes 2", "0", "gives no job id", "--run-id tiny-$(date +%s)"),
        ("job.yaml --nnodes 2 --run-id a", "2", "2, but this is node 2", "a larger nnodes"),
        ("job.yaml --nnodes 2 --run-id a/b", "0", "letters, digits, points", "--run-id a-b"),
        ("job.yaml --nnodes 2 --run-id a --set engine=torchrun", "0", "torchrun must", "remove"),
        (
            "job.yaml --nnodes 2 --run-id a --set rdzv.backend=static",
            "0",
            "addresses are not known before",
            "leave it out",
        ),
        ("gone.py --nnodes 2 --run-id a", "0", "no such file", "check the path"),
    ],
)
def test_what_is_wrong_is_told_at_once_with_the_fix(starting, words, index, said, fix):
    env = {"LAUNCHER_NODE_INDEX": index} if index else {}
    code, _, err = finish(starting.node(*words.split(), **env))
    assert code == 2, err
    assert said in err
    assert fix in err


@pytest.mark.mpi
def test_a_stop_from_another_terminal_reaches_nodes_that_mpirun_started(starting):
    starting.launcher.write(WAITING, JOB)
    process = starting.mpirun(2, "node", "job.yaml")
    latest = starting.launcher.folder / "runs/latest"
    wait_until(lambda: len(list(latest.glob("up-*"))) == 2)
    (run_id,) = starting.launcher.run_ids()
    status = starting.launcher("status")
    assert f"{run_id}: RUNNING on starter" in status.stdout
    assert "node 1: running" in status.stdout
    assert "starter" in starting.launcher("ps").stdout
    stopped = starting.launcher("stop")
    assert (stopped.returncode, "stopped, stop-requested" in stopped.stderr) == (0, True)
    assert finish(process)[0] == 143
    assert starting.launcher("stop").returncode == 0
    assert "no runs go on" in starting.launcher("ps").stdout
