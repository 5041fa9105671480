"""Containers that are held, and runs in them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.debugged import STOPS, debug_rank_1
from tests.held import JOB, SUMS, check_lost_nodes, check_three_runs, folder_of_hold
from tests.launcher.docker_runs import containers, node, remove_left
from tests.launcher.runner import Runner
from tests.waiting import wait_until

pytestmark = pytest.mark.docker
HOLD = ("hold", "--name", "dev", "--on", "docker", "--nproc-per-node", "1")
LEAVES = """
import pathlib
left = [pathlib.Path(folder, "left") for folder in ("/tmp", "/dev/shm")]
for path in left:
    assert not path.exists(), path
    path.mkdir()
    (path / "more").touch()
print("nothing is left", flush=True)
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> Iterator[Runner]:
    """A hold ``dev`` of two containers, which a release leaves nothing of."""
    launcher = Runner(tmp_path_factory.mktemp("dev"))
    done = launcher(*HOLD, "--nnodes", "2")
    assert done.returncode == 0, done.stderr
    yield launcher
    assert launcher("release", "dev").returncode == 0
    assert remove_left(engine, launcher.run_ids()) == []


@pytest.mark.slow
def test_runs_in_held_containers_start_none(held: Runner, engine: Any) -> None:
    check_three_runs(held)
    held.write(LEAVES, JOB)
    for _ in range(2):
        done = held("run", "job.yaml", "--in", "dev")
        assert done.stdout.count("nothing is left") == 2, done.stderr
    run_ids = held.run_ids()
    hold = folder_of_hold(held).name
    assert len(containers(engine, hold)) == 2
    assert not [run for run in run_ids if run != hold and containers(engine, run)]
    again = held("run", "--again", "latest")
    assert again.returncode == 2
    assert "that run was in a hold; name the hold to use now" in again.stderr


@pytest.mark.slow
def test_a_rank_of_a_run_in_held_containers_is_debugged(held: Runner) -> None:
    held.write(STOPS, JOB)
    debug_rank_1(held, "--in", "dev")


@pytest.mark.slow
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


@pytest.mark.slow
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
