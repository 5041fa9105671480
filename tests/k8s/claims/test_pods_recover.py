"""Rendered pods in real containers: one is lost or drained, its controller makes another."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.pods_on_docker import Pods, pods_of
from tests.launcher.targets.docker.claims.test_run import ELASTIC
from tests.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
Make = Callable[..., Pods]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Two elastic nodes of one worker each."""
    made: list[Pods] = []

    def start(kind: str, command: list[str]) -> Pods:
        fields = {
            "command": command,
            "nnodes": "1:2",
            "nproc_per_node": 1,
            "stop_grace_s": 20,
            "kubernetes": {"kind": kind, "checkpoint": "pvc/storage"},
        }
        if command == ["train.py"]:
            fields["workdir"] = "/code"
            fields["kubernetes"] |= {"volumes": ["pvc/code:/code:ro"]}  # type: ignore[operator]
        pods = pods_of(fields, tmp_path)
        made.append(pods)
        (pods.claim("code") / "train.py").write_text(ELASTIC)
        return pods

    yield start
    for pods in made:
        pods.close()


def healthz(asked: Any, by: Any, network: str) -> bytes:
    """What one pod's agent answers at its pod's address, as a kubelet asks."""
    asked.reload()
    address = asked.attrs["NetworkSettings"]["Networks"][network]["IPAddress"]
    code = f"import urllib.request as u; print(u.urlopen('http://{address}:9400/healthz').status)"
    return bytes(by.exec_run(["python3", "-c", code]).output.strip())


@pytest.mark.parametrize("kind", ["pytorchjob", "job"])
def test_pods_answer_probes_the_first_is_lost_the_other_goes_on_and_a_new_one_joins(kind, make):
    pods = make(kind, ["train.py"])
    run_dir = pods.claim("storage") / "runs/digits"

    def has(world: str) -> bool:
        return (run_dir / f"world-{world}").exists()

    first, second = pods.start(0), pods.start(1)
    wait_until(lambda: has("2-0-0") and has("2-1-0"))
    assert healthz(first, second, pods.network.name) == b"200"
    assert healthz(second, first, pods.network.name) == b"200"
    first.remove(force=True)
    pods.containers.remove(first)
    wait_until(lambda: has("1-1-0"))
    replaced = pods.start(0)
    wait_until(lambda: has("2-0-1"))
    (run_dir / "go").touch()
    for container in (second, replaced):
        assert container.wait(timeout=120)["StatusCode"] == 0, container.logs().decode()
    outcome = json.loads((run_dir / "nodes/0/1/outcome.json").read_text())
    assert (outcome["cause"], outcome["incarnation"]) == ("completed", 1)
