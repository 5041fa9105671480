"""``launcher play`` of the manifests that this project ships, in real containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.k8s.test_cluster import accuracy

ROOT = Path(__file__).parents[3]
LIMIT_S = 900.0
pytestmark = [pytest.mark.docker, pytest.mark.timeout(1000)]


def play(manifest: str, output: Path, image: str = "fabric-train:cpu") -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "launcher", "play", manifest, "--image", image]
    return subprocess.Popen(argv, cwd=ROOT, stdout=output.open("wb"), stderr=subprocess.STDOUT)


@pytest.mark.parametrize("manifest", ["k8s/job.yaml", "k8s/job-static.yaml"])
def test_the_shipped_manifest_trains_digits(manifest, tmp_path):
    output = tmp_path / "output"
    process = play(manifest, output)
    assert process.wait(LIMIT_S) == 0, output.read_text()[-3000:]
    assert accuracy(output.read_text()) >= 0.97
