"""Digits trains on Slurm exactly as it does here; its output arrives whole."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.runner import Runner
from tests.slurm.typist import PREFIX, ROOT, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

EXACT = ("--", "--reduction=exact", "--max_steps=8")
COUNTING = """
import sys
for number in range(400):
    print(f"line {number}", flush=number % 7 == 0)
    print(f"error {number}", file=sys.stderr, flush=True)
print("without an end", end="")
"""


def train_digits(runner: Runner, *options: str) -> dict[str, Any]:
    """Trains in this folder; the run's metrics."""
    for name in ("jobs", "fabric_train", "train"):
        shutil.copytree(ROOT / name, runner.folder / name, dirs_exist_ok=True)
    runner.limit_s = 400.0
    done = runner("run", "jobs/digits.yaml", *options)
    assert done.returncode == 0, done.stderr
    metrics: dict[str, Any] = runner.outcome["metrics"]
    return metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["allocation", "array"])
def test_exact_weights_are_those_of_a_local_run(typist: Typist, tmp_path: Path, kind: str) -> None:
    there = train_digits(
        *(typist, "--on", "slurm", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--set", f"slurm.kind={kind}", *EXACT),
    )
    folder = tmp_path / "here"
    folder.mkdir()
    here = train_digits(Runner(folder), "--on", "local", "--nproc-per-node", "1", *EXACT)
    assert (there["world_size"], here["world_size"]) == (2, 1)
    assert there["weights_sha256"] == here["weights_sha256"]


def test_live_output_is_line_by_line_what_the_workers_wrote(typist: Typist) -> None:
    typist.write(COUNTING, f"{PREFIX}nnodes: 2\n")
    done = typist("run", "job.yaml", "--on", "slurm")
    assert done.returncode == 0, done.stderr
    for index in range(2):
        (folder,) = typist.run.glob(f"nodes/{index}/0/attempt-0/rank-*")
        rank = folder.name.removeprefix("rank-")
        for name in ("stdout", "stderr"):
            wrote = (folder / name).read_text().splitlines()
            assert len(wrote) >= 400
            prefix = f"[{index}/{rank}] "
            shown = [
                line.removeprefix(prefix)
                for line in (done.stdout + done.stderr).splitlines()
                if line.startswith(prefix)
                and re.match("error" if name == "stderr" else "line|without", line[len(prefix) :])
            ]
            assert shown == wrote
    assert json.loads((typist.run / "outcome.json").read_text())["state"] == "succeeded"
