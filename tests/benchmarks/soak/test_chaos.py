"""Failures in real containers, one after the other, and the weights of the undisturbed run."""

import subprocess
import sys

import pytest

from benchmarks.commands import ROOT
from tests.programs import run_program


def run_chaos(*options: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "benchmarks.chaos", *options], cwd=ROOT, timeout=limit_s
    )


@pytest.mark.docker
@pytest.mark.timeout(7200)
def test_many_failures_leave_the_weights_as_they_would_have_been():
    done = run_chaos("--faults=30", "--seed=2", limit_s=7000)
    assert done.returncode == 0, done.stdout + done.stderr
