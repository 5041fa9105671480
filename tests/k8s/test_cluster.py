"""Whole runs on the cluster of kubectl's current context: ``CLUSTER_IMAGE=REF make test
REQUIRE=cluster``. They need nothing but the right to make a namespace of their own."""

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
LIMIT_S = 900.0
CRDS = {
    "pytorchjob": "pytorchjobs.kubeflow.org",
    "trainjob": "trainjobs.trainer.kubeflow.org",
    "jobset": "jobsets.jobset.x-k8s.io",
}


def kubectl(*words: str, check: bool = True) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"launcher-test-{secrets.token_hex(3)}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def launcher(namespace: str, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    def start(*words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "launcher", *words, "--runs", str(tmp_path / "runs")]
        output = subprocess.STDOUT
        return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=output, text=True)

    return start


def job(namespace: str, kind: str, **fields: str) -> list[str]:
    """The job file's words for one kind; storage of each pod's own, as any cluster has."""
    given = {"kubernetes.kind": kind, "kubernetes.namespace": namespace}
    given |= {"kubernetes.checkpoint": "ephemeral", **fields}
    settings = [word for pair in given.items() for word in ("--set", "=".join(pair))]
    image = os.environ["CLUSTER_IMAGE"]
    return ["jobs/digits-kubernetes.yaml", "--on", "kubernetes", "--image", image, *settings]


def until(happened: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(2)


def has_crd(kind: str) -> bool:
    return bool(kubectl("get", "crd", CRDS[kind], "--ignore-not-found", "-o", "name"))


def pods(namespace: str, phase: str = "Running") -> list[str]:
    chosen = f"--field-selector=status.phase={phase}"
    return kubectl("get", "pods", "-n", namespace, chosen, "-o", "name").split()


def accuracy(text: str) -> float:
    found = re.findall(r"test accuracy ([0-9.]+)", text)
    assert found, text[-3000:]
    return float(found[-1])


def test_an_indexed_job_trains_and_survives_the_loss_of_a_pod(namespace, launcher):
    run = launcher("run", *job(namespace, "job"))
    until(lambda: len(pods(namespace)) == 2, "two pods run")
    kubectl("delete", "-n", namespace, pods(namespace)[1], "--grace-period=0", "--force")
    text, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, text[-3000:]
    assert accuracy(text) >= 0.97
    assert not pods(namespace)
    # The lost pod's lines are there too, and none of them twice.
    said = launcher("logs", "latest").communicate(timeout=LIMIT_S)[0].splitlines()
    epochs = [line for line in said if re.search(r"epoch \d+/", line)]
    assert epochs
    assert len(epochs) == len(set(epochs))


def test_an_indexed_job_is_scaled_and_stopped(namespace, launcher):
    words = ("run", *job(namespace, "job"), "--detach")
    run_id = launcher(*words).communicate(timeout=LIMIT_S)[0].split()[-1]
    until(lambda: len(pods(namespace)) == 2, "two pods run")
    assert launcher("scale", run_id, "1").wait(LIMIT_S) == 0
    until(lambda: len(pods(namespace)) == 1, "one pod runs")
    assert launcher("stop", run_id).wait(LIMIT_S) == 0
    assert not kubectl("get", "jobs,pods", "-n", namespace, "-o", "name")


def test_a_run_goes_on_without_its_launcher_and_its_logs_are_followed_from_the_cluster(
    namespace, launcher
):
    run = launcher("run", *job(namespace, "job"))
    until(lambda: len(pods(namespace)) == 2, "two pods run")
    run.kill()
    run.communicate()
    text, _ = launcher("logs", "--follow", "latest").communicate(timeout=LIMIT_S)
    assert accuracy(text) >= 0.97
    assert "completed" in launcher("status", "latest").communicate(timeout=LIMIT_S)[0]
    assert not kubectl("get", "jobs", "-n", namespace, "-o", "name")


def needs_crd(kind: str) -> None:
    if not has_crd(kind):
        pytest.skip(f"cluster: no CRD {CRDS[kind]}")


def fixed(kind: str) -> list[str]:
    return [] if kind == "pytorchjob" else ["--nnodes", "2"]


@pytest.mark.parametrize("kind", sorted(CRDS))
def test_an_operators_kind_trains_where_its_controller_runs(kind, namespace, launcher):
    needs_crd(kind)
    run = launcher("run", *job(namespace, kind), *fixed(kind))
    asked = ("get", CRDS[kind], "digits", "-n", namespace, "--ignore-not-found", "-o")
    until(lambda: kubectl(*asked, "name"), "the job is submitted")
    try:
        until(lambda: kubectl(*asked, "jsonpath={.status}") or pods(namespace, "Pending"), "", 60)
    except AssertionError:
        launcher("stop", "latest").wait(LIMIT_S)
        run.communicate(timeout=LIMIT_S)
        pytest.skip(f"cluster: no controller of {CRDS[kind]}")
    if kind == "pytorchjob":
        until(lambda: len(pods(namespace)) == 2, "two pods run")
        kubectl("delete", "-n", namespace, "pod/digits-worker-0", "--grace-period=0", "--force")
    text, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, text[-3000:]
    assert accuracy(text) >= 0.97
