"""Whole runs under the launcher: with ``exact`` the world has no say in the weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def digest_of_run(folder: Path, processes: int, *options: str) -> str:
    """``weights_sha256`` of ``launcher run`` with so many processes."""
    argv = [sys.executable, "-m", "launcher", "run", "jobs/digits.yaml", "--on", "local"]
    argv += ["--nproc-per-node", str(processes), "--runs", str(folder)]
    argv += ["--set", f"checkpoint_dir={folder / 'checkpoints'}"]
    argv += ["--", "--reduction=exact", *options]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=280)
    outcome = json.loads((folder / "latest" / "outcome.json").read_text())
    assert outcome["metrics"]["world_size"] == processes
    return str(outcome["metrics"]["weights_sha256"])


@pytest.mark.slow  # the kill matrix and the walks show it in every CI
def test_the_job_file_gives_the_same_weights_with_one_to_four_processes(tmp_path: Path) -> None:
    options = ("--epochs=10", "--max_grad_norm=1")
    digests = {digest_of_run(tmp_path / str(n), n, *options) for n in (1, 2, 3, 4)}
    assert len(digests) == 1
