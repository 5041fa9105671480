"""Code that no ConfigMap takes: sent into one pod, got from there by the others and by later ones.

Init containers run as processes of this machine, each in a folder of its own in the place of
``/launcher``, at addresses of its own in the place of its pod's name.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import INDEX, ClusterRun
from tests.launcher.fake_cluster import FakeCluster, Fault, pod
from tests.launcher.targets.kubernetes.test_send_code import (
    WORDS,
    code_in,
    finish,
    plan_in,
    pods,
    port,
    project,
)


def put_job(server: FakeCluster, plan: LaunchPlan, project: Path) -> None:
    """The job without a launcher."""
    target = KubernetesTarget(project / "runs")
    target.code = code_in(project)
    server.put("jobs", target.render(plan).objects[-1])


def test_where_all_pods_are_lost_the_launcher_sends_it_again(server, project, pods, port):
    run = ClusterRun(server, project, plan_in(project, port, nodes=1), code_in(project))
    pods.start("train-0-a", 0)
    assert pods.has_code("train-0-a", project)
    server.remove("pods", "train-0-a")
    pods.start("train-0-b", 0, "10")
    assert pods.has_code("train-0-b", project)
    assert server.executed == ["train-0-a", "train-0-b"]
    finish(run)


def test_pods_that_cannot_give_it_to_each_other_get_it_each_from_the_launcher(
    server, project, pods
):
    plan = plan_in(project, None, host_network=True)
    run = ClusterRun(server, project, plan, code_in(project))
    pods.start("train-0-a", 0)
    assert pods.has_code("train-0-a", project)
    pods.start("train-1-a", 1)
    assert pods.has_code("train-1-a", project)
    assert server.executed == ["train-0-a", "train-1-a"]
    finish(run)


@pytest.mark.parametrize("after", [0, 1_000_000])
def test_a_connection_that_breaks_while_it_is_sent_is_told_and_tried_again(
    after, server, project, pods, port
):
    server.faults.append(Fault("GET", "/exec", 0, after=after))
    run = ClusterRun(server, project, plan_in(project, port, nodes=1), code_in(project))
    pods.start("train-0-a", 0)
    assert pods.has_code("train-0-a", project)
    assert "trying again" in run.said("does not answer")
    assert server.executed[-1] == "train-0-a"
    finish(run)


def test_a_pod_that_nobody_sends_the_code_to_ends_after_its_limit_and_says_so(
    server, project, pods, port
):
    plan = plan_in(project, port, nodes=1, start_limit_s=4)
    put_job(server, plan, project)
    program = pods.start("train-0-a", 0)
    (node,) = KubernetesTarget(project / "runs").observe(plan).nodes
    assert node.detail == "train-0-a: waits for its code"
    assert program.wait(30) == 1
    said = program.stderr.read()
    assert "is not the code of this run" in said
    assert "fix: start the run again" in said


def test_ctrl_c_while_it_is_sent_ends_the_run_at_once_and_leaves_nothing(server, project, port):
    argv = [sys.executable, "-m", "launcher", "run", *WORDS, "--kind", "job"]
    launcher = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    server.until(lambda: ("jobs", "train") in server.objects)
    labels = server.objects["jobs", "train"]["metadata"]["labels"]
    pipe = subprocess.PIPE
    hanging = subprocess.Popen(["sleep", "60"], stdin=pipe, stdout=pipe, stderr=pipe)
    server.programs["train-0-a"] = lambda argv: hanging
    running = {"name": "code", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    inits = {"initContainerStatuses": [running]}
    item = pod("train-0-a", {**labels, INDEX: "0"}, phase="Pending", state=waiting, **inits)
    server.put("pods", item)
    server.until(lambda: server.executed)
    server.remove("pods", "train-0-a")
    launcher.send_signal(signal.SIGINT)
    try:
        _, said = launcher.communicate(timeout=20)
    finally:
        launcher.kill()
        hanging.kill()
    assert launcher.returncode == 130, said
    assert not server.objects, said
