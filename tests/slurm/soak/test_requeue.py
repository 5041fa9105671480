"""A chain of starts that Slurm cuts short gives the weights of one undisturbed run, bit for bit."""

import re

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.typist import ROOT, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
SLOWED = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
import train.__main__ as program
import train.loop
from pathlib import Path

real = train.loop.cross_entropy
def slow(*arguments, **options):
    time.sleep(float(os.environ["STEP_S"]))
    return real(*arguments, **options)
train.loop.cross_entropy = slow
program.exit_on_sigterm(Path(os.environ["LAUNCHER_NODE_DIR"]))
sys.exit(program.main(sys.argv[1:]))
"""
"""``python -m train`` whose steps take some time."""


def write_job(typist: Typist, kind: str, steps: int, step_s: float, more: str = "") -> None:
    (typist.folder / "train.py").write_text(SLOWED)
    (typist.folder / "job.yaml").write_text(f"""
name: chain
command: [train.py, --reduction=exact, --virtual_shards=4, --global_batch_size=24,
          --max_steps={steps}, --checkpoint_every_steps=1000]
nnodes: 2
nproc_per_node: 1
stop_grace_s: 10
start: fork
env: {{STEP_S: "{step_s}"}}
slurm: {{kind: {kind}{more}}}
""")


def undisturbed(typist: Typist) -> str:
    """The weights of the same job here, in one process."""
    argv = ("--on", "local", "--nnodes", "1", "--set", "env.STEP_S=0", "--runs", "undisturbed")
    typist.well("run", "job.yaml", *argv)
    outcome = (typist.folder / "undisturbed/latest/outcome.json").read_text()
    (found,) = set(re.findall(r'"weights_sha256": "(\w+)"', outcome))
    return found


def has_stepped(typist: Typist, start: int) -> bool:
    """Whether a start of the job, which is an incarnation of its nodes, is in its training."""
    told = typist.run.glob(f"nodes/*/{start}/attempt-*/rank-*/stderr")
    return any("  step " in path.read_text() for path in told)


@pytest.mark.parametrize(
    ("kind", "notices", "steps"), [("allocation", 1, 40), ("array", 3, 100)], ids=["job", "array"]
)
def test_notices_of_a_time_limit_leave_no_trace_in_the_weights(typist, kind, notices, steps):
    """What ``--signal`` sends at a time limit, sent by hand: minutes are the shortest limit."""
    write_job(typist, kind, steps=steps, step_s=0.1)
    typist.start("run", "job.yaml", "--on", "slurm")
    wait_until(lambda: any((typist.run / "slurm").glob("*.job")))
    name = f"{typist.job}_0" if kind == "array" else typist.job
    for number in range(notices):
        wait_until(lambda number=number: has_stepped(typist, number))
        typist.cluster.ask("scancel", "--batch", "--signal=USR1", typist.job)
        wait_until(lambda number=number: typist.starts()[f"{name}.{number}"])
    code, _, err = typist.finish(120)
    assert code == 0, err
    assert [word.split()[1] for key, word in sorted(typist.starts().items()) if name in key] == [
        *["requeued"] * notices,
        "over",
    ]
    assert typist.outcome["metrics"]["resumed_from_step"] > 0
    assert typist.outcome["metrics"]["weights_sha256"] == undisturbed(typist)
    typist.cluster.wait_idle()


def test_three_time_limits_in_a_row_leave_no_trace_in_the_weights(typist):
    # Slurm looks every 30 s: a start has 50 to 80 s until its notice. The steps take 272 s.
    write_job(typist, "allocation", steps=340, step_s=0.4, more=", time: 0:02:00")
    typist.start("run", "job.yaml", "--on", "slurm")
    code, _, err = typist.finish(600)
    assert code == 0, err
    words = [word.split() for word in typist.starts().values()]
    assert len(words) >= 4
    assert {then for _, then in words[:-1]} == {"requeued"}
    assert typist.outcome["metrics"]["weights_sha256"] == undisturbed(typist)
    typist.cluster.wait_idle()


def test_a_signal_that_reaches_the_workers_too_costs_no_step(tmp_path):
    """With linuxproc Slurm's SIGTERM goes to the agent and to its workers at the same time."""
    cluster = Cluster("linuxproc")
    typist = Typist(tmp_path, cluster)
    try:
        cluster.start()
        write_job(typist, "allocation", steps=80, step_s=0.1, more=", exclusive: true")
        typist.start("run", "job.yaml", "--on", "slurm")
        wait_until(lambda: any((typist.run / "slurm").glob("*.job")))
        wait_until(lambda: has_stepped(typist, 0))
        cluster.submit("--partition=high", "--exclusive", "--nodes=3", script="sleep 2")
        code, _, err = typist.finish(180)
        assert code == 0, err
        assert typist.outcome["metrics"]["resumed_from_step"] > 0
        assert typist.outcome["metrics"]["weights_sha256"] == undisturbed(typist)
    finally:
        typist.end()
        cluster.close()
