"""Containers that are held, and runs in them."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.held import JOB, SUMS, check_lost_nodes, folder_of_hold
from tests.launcher.docker_runs import node, remove_left
from tests.launcher.targets.docker.claims.test_hold import HOLD, held
from tests.waiting import wait_until

pytestmark = pytest.mark.docker


def test_a_lost_container_is_replaced_while_a_run_uses_it_and_while_idle(held, engine):
    hold = folder_of_hold(held).name
    check_lost_nodes(held, lambda index: node(engine, hold, index).kill())


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


def test_a_hold_whose_launcher_is_killed_ends_by_its_limit(launcher, engine):
    launcher.well(*HOLD, "--idle-limit", "3")
    hold = folder_of_hold(launcher)
    os.kill(json.loads((hold / "launcher.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: node(engine, hold.name, 0).status == "exited")
    told = launcher.fails(2, "run", "job.yaml", "--in", "dev")
    assert "the hold dev has ended" in told
    # Whoever looked has removed what was left.
    assert remove_left(engine, [hold.name]) == []
