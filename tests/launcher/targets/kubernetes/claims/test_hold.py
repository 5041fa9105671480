"""Pods that are held, and runs in them. Containers of this machine are the pods."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debugged import STOPS, debug_rank_1
from tests.k8s.held_pods import Controller
from tests.launcher.fake_cluster import FakeCluster
from tests.launcher.runner import Runner

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl"),
]
HOLD = (
    *("hold", "--name", "dev", "--on", "kubernetes", "--kind", "job", "--nnodes", "2"),
    *("--nproc-per-node", "1", "--set", "agent.in_image=false"),
)


@pytest.fixture
def pods(server: FakeCluster, tmp_path: Path) -> Iterator[Controller]:
    server.lets_anybody_in = True
    controller = Controller(server, tmp_path)
    yield controller
    controller.close()


@pytest.fixture
def held(pods: Controller, server: FakeCluster, tmp_path: Path) -> Iterator[Runner]:
    launcher = Runner(tmp_path)
    launcher.well(*HOLD)
    yield launcher
    launcher.well("release", "dev", "-n", "team")
    assert not [key for key in server.objects if key[0] in ("jobs", "pods")]


def test_a_rank_of_a_run_in_held_pods_is_debugged(held, server, pods):
    held.write(STOPS)
    debug_rank_1(held, "--in", "dev")
    assert [name for kind, name in server.objects if kind == "jobs"] == ["dev"]
    for _, container in pods.running.values():
        code, left = container.exec_run("ls /launcher/run/held/runs")
        assert (code, left) == (0, b"")
