"""Pods that are held, and runs in them. Containers of this machine are the pods."""

import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.runs.folder import RunFolder
from launcher.targets.hosts.program.messages import FOLLOWED_S
from tests.held import JOB, SUMS, TRAINS, folder_of_hold, is_up
from tests.k8s.held_pods import Controller
from tests.launcher.fake_cluster import FakeCluster
from tests.launcher.runner import Runner
from tests.waiting import wait_until

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
    launcher.well("stop", "dev", "-n", "team")
    assert not [key for key in server.objects if key[0] in ("jobs", "pods")]


def train(held: Runner) -> subprocess.Popen[bytes]:
    """A run in the hold whose two ranks have begun."""
    held.write(TRAINS, JOB)
    process = held.start("run", "job.yaml", "--in", "dev")
    wait_until(lambda: is_up(held, "up-0-0", "up-1-0"))
    return process


def finish(held: Runner, pods: Controller, process: subprocess.Popen[bytes]) -> bytes:
    """Has the script that trains end, and ended well; what the launcher said."""
    run = (held.folder / "runs/latest").resolve().name
    for _, container in pods.running.values():
        container.exec_run(["touch", f"/launcher/run/held/runs/{run}/go"])
    out, told = process.communicate(timeout=90)
    assert process.returncode == 0, told
    assert out.count(b"trained") == 2, out
    return told


def test_what_held_pods_lack_is_refused(held):
    for job, words, what in (
        ("", ["--nnodes", "1"], "a run in dev takes all of its 2 nodes"),
        ("checkpoint_dir: /mnt\n", [], "checkpoint_dir: /mnt: nodes of dev see no folders"),
        ("mounts: [/usr:/data]\n", [], "mounts.0: dev has not mounted /usr"),
        ("", ["--image", "other:1"], "image: other:1, but dev holds fabric-train:"),
    ):
        held.write(SUMS, JOB + job)
        told = held.fails(2, "run", "job.yaml", "--in", "dev", *words)
        assert what in told, told
    assert ", free" in held("status", "dev").stdout


def test_a_run_waits_for_a_pod_that_is_just_being_replaced_though_the_launcher_has_died(held, pods):
    # Nobody reads the log of the next pod, which has the place of the one before it.
    hold = folder_of_hold(held)
    launcher = RunFolder(hold).launcher_pid()
    assert launcher is not None
    os.kill(launcher, signal.SIGKILL)
    pods.lose(1)
    held.write(SUMS, JOB)
    process = held.start("run", "job.yaml", "--in", "dev")
    time.sleep(5.0)
    assert process.poll() is None
    pods.start(1, elsewhere=True)
    out, told = process.communicate(timeout=90)
    assert process.returncode == 0, told
    assert out.count(b"sum 2.0 left None") == 2, out


def test_a_run_goes_on_while_its_api_server_is_away(held, pods, server):
    process = train(held)
    pods.cut()
    # Longer than a host may be silent before its node is lost.
    time.sleep(FOLLOWED_S + 15.0)
    server.away = False
    told = finish(held, pods, process)
    assert b"does not answer" in told
    assert b"starting all nodes again" not in told
    assert b"replacing" not in told


def test_the_nodes_meet_at_the_address_of_a_new_pod(held, pods):
    process = train(held)
    for index in (0, 1):
        pods.lose(index)
        # A cluster may have no place for it yet.
        time.sleep(12.0 * index)
        pods.start(index, elsewhere=True)
        name = f"up-{index}-1"
        wait_until(functools.partial(is_up, held, name), lambda: held("logs", "-v").stderr)
    told = finish(held, pods, process)
    assert b"started again 2 times" in told, told.decode()


def test_a_hold_that_could_not_be_used_is_refused(server, tmp_path):
    launcher = Runner(tmp_path)
    refused = launcher(*HOLD, "--kind", "trainjob")
    assert (refused.returncode, "--kind pytorchjob, jobset or job" in refused.stderr) == (2, True)
    server.denied.add(("create", "pods/exec"))
    told = launcher.fails(2, *HOLD)
    assert "runs in a hold are started in its pods, and you may not" in told
    server.denied = {("get", "pods")}
    refused = launcher.fails(2, *HOLD)
    assert "by kubectl exec, and you may not get pods in namespace team" in refused
    assert not [key for key in server.objects if key[0] == "jobs"]
