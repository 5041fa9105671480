"""``make gpu`` without a GPU: the CPU stands in for CUDA, so that what can run has run."""

import subprocess
import sys

import pytest

from tests.gpu.cases import CASES, ROOT
from tests.training import clean_environment


@pytest.mark.parametrize("name", CASES)
def test_a_case_ends_well_or_says_why_it_was_skipped(name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", name],
        cwd=ROOT,
        env=clean_environment(GPU_DRY="1", CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()[-1]
    assert told.startswith(("passed", "skipped"))
    assert not told.endswith(": "), "a figure, or the reason"
