"""Pods that are held, and runs in them. Containers of this machine are the pods."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.contract import protocol
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.debugged import STOPS, debug_rank_1
from tests.held import JOB, SUMS, TRAINS, check_three_runs, folder_of_hold, is_up
from tests.k8s.pods_on_docker import Pods
from tests.launcher.cluster_run import INDEX
from tests.launcher.fake_cluster import FakeCluster, ended, pod
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


class Controller:
    """Makes and removes the pods of a hold, and has the server know their logs."""

    def __init__(self, server: FakeCluster, launcher: Runner) -> None:
        self._server, self._launcher = server, launcher
        self._pods: Pods | None = None
        self.running: dict[int, tuple[str, Any]] = {}
        self._made = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(0.1):
            is_wanted = ("jobs", "dev") in self._server.objects
            if is_wanted and self._pods is None:
                run = RunFolder(folder_of_hold(self._launcher))
                plan = run.read_plan()
                manifest = KubernetesTarget(run.path.parent).render(plan)
                self._pods = Pods(plan, manifest, self._launcher.folder / "cluster")
                for index in (0, 1):
                    self.start(index)
            elif not is_wanted:
                for index in [*self.running]:
                    self.lose(index)

    def start(self, index: int) -> None:
        assert self._pods is not None
        self._made += 1
        name, container = f"dev-{index}-{self._made:05d}", self._pods.start(index)
        self.running[index] = name, container
        labels = {protocol.LABEL_RUN_ID: self._pods.plan.run_id, INDEX: str(index)}
        item = pod(name, labels)
        item["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{self._made:02d}Z"
        self._server.put("pods", item)
        pipe = subprocess.PIPE

        def enter(argv: list[str]) -> subprocess.Popen[bytes]:
            words = ["docker", "exec", "--interactive", container.id, *argv]
            return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)

        self._server.programs[name] = enter
        threading.Thread(target=self._bring_log, args=(name, container), daemon=True).start()

    def _bring_log(self, name: str, container: Any) -> None:
        for line in container.logs(stream=True, follow=True, timestamps=True):
            stamp, _, text = line.decode().rstrip("\n").partition(" ")
            self._server.log(name, (stamp, text))
        self._server.log(name, ended=True)

    def lose(self, index: int) -> None:
        name, container = self.running.pop(index)
        container.kill()
        del self._server.programs[name]
        labels = self._server.objects["pods", name]["metadata"]["labels"]
        self._server.put("pods", pod(name, labels, phase="Failed", state=ended(137)))
        self._server.remove("pods", name)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        if self._pods is not None:
            self._pods.close()


@pytest.fixture
def pods(server: FakeCluster, tmp_path: Path) -> Iterator[Controller]:
    server.lets_anybody_in = True
    controller = Controller(server, Runner(tmp_path))
    yield controller
    controller.close()


@pytest.fixture
def held(pods: Controller, server: FakeCluster, tmp_path: Path) -> Iterator[Runner]:
    launcher = Runner(tmp_path)
    done = launcher(*HOLD)
    assert done.returncode == 0, done.stderr
    yield launcher
    done = launcher("release", "dev")
    assert done.returncode == 0, done.stderr
    assert not [key for key in server.objects if key[0] in ("jobs", "pods")]


def test_runs_in_held_pods_make_none(held: Runner, server: FakeCluster, pods: Controller) -> None:
    check_three_runs(held)
    assert [name for kind, name in server.objects if kind == "jobs"] == ["dev"]
    for _, container in pods.running.values():
        code, left = container.exec_run("ls /launcher/run/held/runs")
        assert (code, left) == (0, b"")
    held.write(STOPS)
    debug_rank_1(held, "--in", "dev")


@pytest.mark.slow
def test_a_lost_pod_of_a_hold_is_replaced(held: Runner, pods: Controller) -> None:
    pods.lose(1)
    pods.start(1)
    wait_until(lambda: (folder_of_hold(held) / "nodes/1/1/ready").exists())
    held.write(SUMS, JOB)
    done = held("run", "job.yaml", "--in", "dev")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0 left None") == 2, done.stdout
    for job, words, what in (
        ("", ["--nnodes", "1"], "a run in dev takes all of its 2 nodes"),
        ("checkpoint_dir: /mnt\n", [], "checkpoint_dir: /mnt: nodes of dev do not see"),
        ("mounts: [/usr:/data]\n", [], "mounts.0: dev has not mounted /usr"),
        ("", ["--image", "other:1"], "image: other:1, but dev holds fabric-train:"),
    ):
        held.write(SUMS, JOB + job)
        refused = held("run", "job.yaml", "--in", "dev", *words)
        assert refused.returncode == 2
        assert what in refused.stderr, refused.stderr
    assert ", free" in held("status", "dev").stdout


@pytest.mark.slow
def test_a_pod_that_is_lost_while_a_run_uses_it(held: Runner, pods: Controller) -> None:
    held.write(TRAINS, JOB + "max_restarts: 2\n")
    process = held.start("run", "job.yaml", "--in", "dev")
    wait_until(lambda: is_up(held, "up-0-0", "up-1-0"))
    pods.lose(1)
    # A cluster may have no place for it yet.
    time.sleep(12.0)
    pods.start(1)
    # The run goes on in the hold's next pod.
    latest = held.folder / "runs/latest"
    wait_until(lambda: [*latest.glob("up-1-[1-9]*")], lambda: held("logs", "-v").stderr)
    run = latest.resolve().name
    for _, container in pods.running.values():
        container.exec_run(["touch", f"/launcher/run/held/runs/{run}/go"])
    out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert out.count(b"trained") == 2, out
    # Nobody reads the log of the next pod, which has the place of the one before it.
    hold = folder_of_hold(held)
    launcher = RunFolder(hold).launcher_pid()
    assert launcher is not None
    os.kill(launcher, signal.SIGKILL)
    pods.lose(1)
    held.write(SUMS, JOB)
    refused = held("run", "job.yaml", "--in", "dev")
    assert f"error: node 1 of {hold.name} does not run" in refused.stderr, refused.stderr
    pods.start(1)
    done = held("run", "job.yaml", "--in", "dev")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0 left None") == 2, done.stdout


def test_a_hold_that_could_not_be_used_is_refused(server: FakeCluster, tmp_path: Path) -> None:
    launcher = Runner(tmp_path)
    refused = launcher(*HOLD, "--kind", "trainjob")
    assert (refused.returncode, "--kind pytorchjob, jobset or job" in refused.stderr) == (2, True)
    server.denied.add(("create", "pods/exec"))
    refused = launcher(*HOLD)
    assert refused.returncode == 2
    assert "runs in a hold are started in its pods, and you may not" in refused.stderr
    assert not [key for key in server.objects if key[0] == "jobs"]
