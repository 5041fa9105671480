"""Containers that are held, and runs in them."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.held import JOB, SUMS, check_lost_nodes, folder_of_hold
from tests.launcher.docker_runs import node, remove_left
from tests.launcher.runner import Runner
from tests.launcher.targets.docker.claims.test_hold import HOLD, held
from tests.waiting import wait_until

pytestmark = pytest.mark.docker


def test_a_lost_container_is_replaced_while_a_run_uses_it_and_while_idle(
    held: Runner, engine: Any
) -> None:
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
def test_what_held_containers_lack_is_refused(
    held: Runner, job: str, words: list[str], what: str
) -> None:
    held.write(SUMS, JOB + job)
    done = held("run", "job.yaml", "--in", "dev", *words)
    assert done.returncode == 2
    assert what in done.stderr, done.stderr
    assert ", free" in held("status", "dev").stdout


def test_a_hold_whose_launcher_is_killed_ends_by_its_limit(launcher: Runner, engine: Any) -> None:
    done = launcher(*HOLD, "--idle-limit", "3")
    assert done.returncode == 0, done.stderr
    hold = folder_of_hold(launcher)
    os.kill(json.loads((hold / "launcher.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: node(engine, hold.name, 0).status == "exited")
    refused = launcher("run", "job.yaml", "--in", "dev")
    assert refused.returncode == 2
    assert "the hold dev has ended" in refused.stderr
    # Whoever looked has removed what was left.
    assert remove_left(engine, [hold.name]) == []
