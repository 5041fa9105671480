"""A script of one's own as pods: rendered, and played in containers of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.code.place import find_code
from launcher.code.record import read_code
from launcher.job.spec import JobSpec
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.render import render_manifest
from tests.k8s.pods_on_docker import IMAGE, Pods
from tests.launcher.own_script.project import (
    ARGUMENTS,
    TWO_BY_TWO,
    losses_in,
    make_project,
)
from tests.launcher.runner import Runner

pytestmark = pytest.mark.docker
OF_PODS = ("--on", "kubernetes", "--image", IMAGE, "--set", "agent.in_image=false")
FAILS_ONCE = """
import os, pathlib, sys, time
tries = pathlib.Path("tries")
n = int(tries.read_text()) if tries.exists() else 0
tries.write_text(str(n + 1))
import helper
print("try", n, helper.NAME, flush=True)
sys.exit(0 if n else 1)
"""


@pytest.fixture
def project(launcher: Runner, tmp_path: Path) -> Runner:
    launcher.folder = make_project(tmp_path)
    return launcher


def play(project: Runner, *words: str) -> subprocess.CompletedProcess[str]:
    rendered = project("render", "train.py", *OF_PODS, *words)
    assert rendered.returncode == 0, rendered.stderr
    (project.folder.parent / "job.yaml").write_text(rendered.stdout)
    return project("play", "../job.yaml")


@pytest.mark.slow  # the same by processes and containers is in test_here
def test_rendered_pods_train_as_local_processes_do(
    project: Runner,
) -> None:
    local = project("run", "train.py", "--on", "local", *TWO_BY_TWO, *ARGUMENTS)
    assert local.returncode == 0, local.stderr
    (project.folder / "out.txt").unlink()
    played = play(project, *TWO_BY_TWO, *ARGUMENTS)
    assert played.returncode == 0, played.stderr
    assert losses_in(played.stdout) == losses_in(local.stdout)
    assert "initContainers" not in played.stderr
    assert not (project.folder / "out.txt").exists()


def test_workers_and_containers_that_restart_keep_the_code_and_what_is_beside_it(
    project: Runner,
) -> None:
    (project.folder / "train.py").write_text(FAILS_ONCE)
    one = ("--nproc-per-node", "1", "--set", "rdzv.backend=static")
    durable = ("--set", "max_restarts=3", "--set", "kubernetes.checkpoint=ephemeral")
    played = play(project, *one, *durable)
    assert played.returncode == 0, played.stderr
    assert "try 0 losses" in played.stdout
    assert "try 1 losses" in played.stdout


@pytest.mark.parametrize("kind", ["pytorchjob", "job"])
def test_pods_with_and_without_an_operator_start_in_their_code(
    kind: str, project: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "train.py").write_text(
        "import os, helper\nprint(helper.NAME, os.getcwd(), open('data.txt').read(3), flush=True)\n"
    )
    monkeypatch.chdir(project.folder)
    fields = {"name": "train", "command": ["train.py"], "nnodes": 2, "nproc_per_node": 1}
    job = JobSpec.model_validate({**fields, "image": IMAGE, "kubernetes": {"kind": kind}})
    place = find_code(job.command, None, None, project.folder)
    assert place is not None
    code = read_code(place, tmp_path / "runs")
    plan = plan_kubernetes(
        job, run_id="train", run_root="runs", cwd=".", place=place, code_hash=code.hash
    )
    pods = Pods(plan, render_manifest(plan, code=code), tmp_path / "pods")
    try:
        for container in [pods.start(index) for index in range(2)]:
            ended = container.wait(timeout=120)
            assert ended["StatusCode"] == 0, container.logs().decode()
            assert "losses /launcher/code 0.1" in container.logs().decode()
    finally:
        pods.close()
