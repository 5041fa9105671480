"""Every fault in every phase, in real processes: each run ends with the undisturbed weights.

Each kind of fault has one run, which meets it in all phases. Each rank meets each kind, and a
fault in each phase.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fabric_train.worker_env import WorkerEnv
from train.config import TrainConfig
from train.loop import train

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "programs" / "faulty.py"
KINDS = ("kill", "term", "raise", "hang")
PHASES = ("forward", "collective", "writing", "unproven", "unnamed")
RANKS = ("last", "first", "last", "last", "first")
"""Which rank meets the fault, by phase; with every other kind it is the other rank. Where the
first rank raises in a save, the training goes on: that is the last fault of its run."""
OTHER = {"first": "last", "last": "first"}
STEPS, BATCH, SHARDS = 60, 24, 4
LIMIT_S = 540
"""For a run on a machine that does other things too."""

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
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "run", "job.yaml", "--on", "local"],
        cwd=folder,
        env={**clean, "FAULTS": " ".join(faults)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    met = {path.name for path in (folder / "runs/latest/faults").glob("*.met")}
    assert met == {f"{number}.met" for number in range(len(faults))}, said
    return json.loads((folder / "runs/latest/outcome.json").read_text()), said


def test_a_worker_killed_in_a_save_leaves_no_trace_in_the_weights(tmp_path, clean, undisturbed):
    outcome, _ = run(tmp_path, clean, ["kill:first:unproven"])
    assert outcome["metrics"]["weights_sha256"] == undisturbed
    assert outcome["metrics"]["resumed_from_step"] > 0


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_each_phase_leaves_no_trace_in_the_weights(tmp_path, clean, undisturbed, kind):
    ranks = [OTHER[rank] for rank in RANKS] if KINDS.index(kind) % 2 else RANKS
    faults = [f"{kind}:{rank}:{phase}" for phase, rank in zip(PHASES, ranks, strict=True)]
    outcome, _ = run(tmp_path, clean, faults)
    assert outcome["metrics"]["weights_sha256"] == undisturbed
