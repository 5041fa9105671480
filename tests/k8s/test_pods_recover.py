"""Rendered pods in real containers: one is lost, its controller makes another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.job import JobSpec
from launcher.kubernetes_plan import plan_kubernetes
from launcher.manifests import render_manifest
from tests.k8s.pods_on_docker import IMAGE, Pods
from tests.launcher.runner import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

SCRIPT = """
import os, time, torch.distributed as dist
from torch import ones
dist.init_process_group("gloo")
shared = os.environ["RUN_DIR"]
who = f"{os.environ['LAUNCHER_NODE_INDEX']}-{os.environ['LAUNCHER_INCARNATION']}"
open(f"{shared}/world-{dist.get_world_size()}-{who}", "w").close()
while not os.path.exists(f"{shared}/go"):
    seen = ones(1)
    dist.all_reduce(seen)
    time.sleep(0.1)
"""


@pytest.fixture
def pods(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """Two elastic nodes of one worker each."""
    fields = {
        "name": "digits",
        "image": IMAGE,
        "command": ["train.py"],
        "nnodes": "1:2",
        "nproc_per_node": 1,
        "stop_grace_s": 10,
        "workdir": "/code",
        "kubernetes": {
            "kind": request.param,
            "checkpoint": "pvc/storage",
            "volumes": ["pvc/code:/code:ro"],
        },
    }
    job = JobSpec.model_validate(fields)
    plan = plan_kubernetes(job, run_id="digits", run_root="runs", cwd=".")
    pods = Pods(plan, render_manifest(plan), tmp_path)
    (pods.claim("code") / "train.py").write_text(SCRIPT)
    yield pods
    pods.close()


@pytest.mark.parametrize("pods", ["pytorchjob", "job"], indirect=True)
def test_the_first_pod_is_lost_the_other_goes_on_and_a_new_one_joins(pods: Pods) -> None:
    run_dir = pods.claim("storage") / "runs/digits"

    def has(world: str) -> bool:
        return (run_dir / f"world-{world}").exists()

    first, second = pods.start(0), pods.start(1)
    wait_until(lambda: has("2-0-0") and has("2-1-0"), 180)
    first.remove(force=True)
    pods.containers.remove(first)
    wait_until(lambda: has("1-1-0"), 120)
    replaced = pods.start(0)
    wait_until(lambda: has("2-0-1"), 180)
    (run_dir / "go").touch()
    for container in (second, replaced):
        assert container.wait(timeout=120)["StatusCode"] == 0, container.logs().decode()
    outcome = json.loads((run_dir / "nodes/0/1/outcome.json").read_text())
    assert (outcome["reason"], outcome["incarnation"]) == ("completed", 1)


@pytest.mark.parametrize("pods", ["pytorchjob"], indirect=True)
def test_the_kubelet_s_probe_reaches_the_agent_at_the_pod_s_address(pods: Pods) -> None:
    run_dir = pods.claim("storage") / "runs/digits"
    nodes = [pods.start(0), pods.start(1)]
    wait_until(lambda: (run_dir / "world-2-0-0").exists(), 180)
    for index, node in enumerate(nodes):
        node.reload()
        address = node.attrs["NetworkSettings"]["Networks"][pods.network.name]["IPAddress"]
        code = (
            f"import urllib.request as u; print(u.urlopen('http://{address}:9400/healthz').status)"
        )
        other = nodes[1 - index]
        assert other.exec_run(["python3", "-c", code]).output.strip() == b"200"
    (run_dir / "go").touch()
    for node in nodes:
        assert node.wait(timeout=120)["StatusCode"] == 0, node.logs().decode()
