"""Containers that are held, and runs in them."""

from __future__ import annotations

import pytest

from tests.held import JOB, SUMS
from tests.launcher.targets.docker.claims.test_hold import held

pytestmark = pytest.mark.docker


@pytest.mark.parametrize(
    ("job", "words", "what"),
    [
        ("", ["--nnodes", "3"], "the hold dev has 2"),
        ("", ["--on", "local"], "--in dev: that hold is on docker"),
        ("", ["--image", "other:1"], "image: other:1, but dev holds fabric-train:"),
        ("mounts: [/usr:/data]\n", [], "mounts.0: dev has not mounted /usr"),
        ("checkpoint_dir: /elsewhere\n", [], "checkpoint_dir: dev has not mounted /elsewhere"),
    ],
)
def test_what_held_containers_lack_is_refused(held, job, words, what):
    held.write(SUMS, JOB + job)
    told = held.fails(2, "run", "job.yaml", "--in", "dev", *words)
    assert what in told, told
    assert ", free" in held("status", "dev").stdout
