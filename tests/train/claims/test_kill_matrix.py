"""Faults in the phases of a step and of a save, in real processes: no weight tells of them.

Pairs of kind, rank and phase are covered: the ranks take turns.
"""

import json
import sys
from pathlib import Path

import pytest

from fabric_train.worker_env import WorkerEnv
from tests.programs import run_program
from train.config import TrainConfig
from train.loop import train

PROGRAM = Path(__file__).parents[1] / "programs" / "faulty.py"
KINDS = ("kill", "term", "raise", "hang")
RANKS = ("first", "last")
PHASES = ("forward", "collective", "writing", "unproven", "unnamed")
FAULTS = [
    f"{kind}:{RANKS[(at + when) % 2]}:{phase}"
    for at, kind in enumerate(KINDS)
    for when, phase in enumerate(PHASES)
]
EACH_KIND = (
    ["kill:first:unproven", "kill:first:forward", "hang:first:unproven", "raise:first:writing"],
    ["term:first:collective"],
)
"""Met by one run after the other; ``make soak`` has every fault in a run of its own.

A write that fails and a SIGTERM let the training go on to its end: each is the last of its run.
"""
STEPS, BATCH, SHARDS = 60, 24, 4
JOB = f"""
name: faulty
command: [{PROGRAM}, --reduction=exact, --virtual_shards={SHARDS}, --global_batch_size={BATCH},
          --max_steps={STEPS}, --checkpoint_every_steps=2, --checkpoint_dir=checkpoints]
nproc_per_node: 2
max_restarts: 30
start: fork
agent: {{hang_min_s: 4, same_failure_limit: 30}}
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> str:
    """The weights' hash of a run on one process that nothing happens to."""
    config = TrainConfig(
        reduction="exact", virtual_shards=SHARDS, global_batch_size=BATCH, max_steps=STEPS
    )
    folder = tmp_path_factory.mktemp("undisturbed")
    return str(train(config, WorkerEnv(run_dir=folder))["weights_sha256"])


def run(folder: Path, clean: dict[str, str], faults: list[str]) -> tuple[dict, str]:
    """A run under the agent that meets these faults; its outcome and what it said."""
    (folder / "job.yaml").write_text(JOB)
    done = run_program(
        [sys.executable, "-m", "launcher", "run", "job.yaml", "--on", "local"],
        cwd=folder,
        env={**clean, "FAULTS": " ".join(faults)},
        timeout=280,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    met = {path.name for path in (folder / "runs/latest/faults").glob("*.met")}
    assert met == {f"{number}.met" for number in range(len(faults))}, said
    return json.loads((folder / "runs/latest/outcome.json").read_text()), said


@pytest.mark.parametrize("faults", EACH_KIND, ids=["kill, hang, raise", "term"])
def test_faults_of_each_kind_leave_no_trace_in_the_weights(tmp_path, clean, undisturbed, faults):
    outcome, _ = run(tmp_path, clean, faults)
    assert outcome["metrics"]["weights_sha256"] == undisturbed
    assert outcome["metrics"]["resumed_from_step"] > 0
