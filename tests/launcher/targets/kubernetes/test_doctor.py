"""``doctor --on kubernetes`` against a server that speaks the wire format: each fault is a row."""

import json
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from launcher.api.choose_target import room_of
from launcher.doctor.finding import Finding, Status, is_fit
from launcher.job.spec import JobSpec
from tests.launcher.fake_cluster import FakeCluster, Fault

JOB = {
    "name": "digits",
    "command": ["-m", "train"],
    "code": "image",
    "image": "example/train:1",
    "nnodes": "2",
    "secrets": ["WANDB_API_KEY"],
    "resources": {"gpus": 2, "cpus": 4, "memory": "8Gi"},
    "kubernetes": {
        "kind": "pytorchjob",
        "checkpoint": "pvc/ckpt",
        "image_pull_secrets": ["registry"],
    },
}
PULL = "kubernetes.io/dockerconfigjson"


def item(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **fields}


def claim(phase: str = "Bound", mode: str = "ReadWriteMany") -> dict[str, Any]:
    status = {"phase": phase, "capacity": {"storage": "1Ti"}}
    return item("ckpt", spec={"accessModes": [mode]}, status=status)


SOUND: dict[str, list[dict[str, Any]]] = {
    "namespaces": [item("team")],
    "persistentvolumeclaims": [claim()],
    "secrets": [
        item("digits-secrets", data={"WANDB_API_KEY": "eA=="}, type="Opaque"),
        item("registry", data={".dockerconfigjson": "eA=="}, type=PULL),
    ],
}


@pytest.fixture(autouse=True)
def _sound(server: FakeCluster) -> None:
    for plural, items in SOUND.items():
        for one in items:
            server.put(plural, json.loads(json.dumps(one)))


def found(**fields: Any) -> list[Finding]:
    job = JobSpec.model_validate({**JOB, **fields})
    return list(room_of("kubernetes").diagnose(job, Path("runs"), 60.0))


def not_ok(**fields: Any) -> list[tuple[str, str, str, str]]:
    rows = [row for row in found(**fields) if row.status is not Status.OK]
    assert all(row.fix for row in rows), rows
    return [(row.status.value, row.check, row.where, row.found) for row in rows]


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "jobset", "job"])
def test_a_sound_cluster_is_fit_and_nothing_is_made(server, kind):
    server.kinds |= {"trainingruntimes"}
    held = dict(server.objects)
    rows = found(kubernetes={**JOB["kubernetes"], "kind": kind})  # type: ignore[dict-item]
    assert [row for row in rows if row.status is Status.FAILED] == []
    assert {"reachable", "namespace", "rights", "dry run", "pod"} <= {r.check for r in rows}
    assert server.objects == held
    asked = [query for method, _, query in server.requests if method in ("PATCH", "DELETE")]
    assert all(query["dryRun"] == "All" for query in asked)


CLAIM = ("PersistentVolumeClaim", "PersistentVolumeClaim ckpt")
REGISTRY = ("image pull secret", "Secret registry")
NOT_SHARED = "for 2 nodes: pods on different nodes cannot share it"
MISSING = {
    ("namespaces", "team"): (("namespace", "team"), "kubectl create namespace team"),
    ("persistentvolumeclaims", "ckpt"): (CLAIM, "k8s/base/storage.yaml"),
    ("secrets", "digits-secrets"): (
        ("Secret", "Secret digits-secrets"),
        "kubectl create secret generic digits-secrets -n team --from-literal=WANDB_API_KEY=...",
    ),
    ("secrets", "registry"): (REGISTRY, "kubectl create secret docker-registry registry -n team"),
}
Row = tuple[str, str, str, str]


def refused_pod(words: str) -> Row:
    told = f"the cluster of context fake cannot post Pod digits-worker-0: {words}"
    return ("failed", "pod", "one of the job's", told)


def refused_job(words: str) -> Row:
    told = f"the cluster of context fake cannot post PyTorchJob digits: {words}"
    return ("failed", "dry run", "PyTorchJob digits", told)


FAULTS: dict[str, tuple[Callable[[FakeCluster], Any], Row, str]] = {
    **{
        f"no {place[1]}": (methodcaller("remove", *place), ("failed", *row, "is not there"), fix)
        for place, (row, fix) in MISSING.items()
    },
    "no operator": (
        lambda server: server.kinds.remove("pytorchjobs"),
        (
            *("failed", "dry run", "PyTorchJob digits"),
            "this cluster has no PyTorchJob CRD, which Kubeflow's training operator brings",
        ),
        "--kind job needs no operator",
    ),
    "no right": (
        lambda server: server.denied.update({("create", "pytorchjobs"), ("get", "pods/log")}),
        ("failed", "rights", "pytorchjobs.kubeflow.org", "you may not create it"),
        "k8s/base/rbac.yaml",
    ),
    "claim not bound": (
        lambda server: server.put("persistentvolumeclaims", claim("Pending")),
        ("warning", *CLAIM, "is not bound yet"),
        "kubectl describe pvc ckpt -n team",
    ),
    "claim lost": (
        lambda server: server.put("persistentvolumeclaims", claim("Lost")),
        ("failed", *CLAIM, "is Lost"),
        "kubectl describe pvc ckpt -n team",
    ),
    "claim of one node": (
        lambda server: server.put("persistentvolumeclaims", claim(mode="ReadWriteOnce")),
        ("warning", *CLAIM, f"bound, 1Ti, ReadWriteOnce, {NOT_SHARED}"),
        "ReadWriteMany",
    ),
    "no key in the secret": (
        lambda server: server.put("secrets", item("digits-secrets", data={})),
        ("failed", "Secret", "Secret digits-secrets", "has no WANDB_API_KEY"),
        """kubectl patch secret digits-secrets -n team -p '{"stringData": {"WANDB_API_KEY": "...""",
    ),
    "pull secret of another type": (
        lambda server: server.put("secrets", item("registry", data={}, type="Opaque")),
        ("failed", *REGISTRY, "is of type Opaque, with which no image is pulled"),
        "kubectl create secret docker-registry registry -n team",
    ),
    "a quota": (
        lambda server: server.put("resourcequotas", item("q", spec={"hard": {"pods": "0"}})),
        refused_pod(
            'pods "digits-worker-0" is forbidden: exceeded quota: q, requested: pods=1, '
            "used: pods=0, limited: pods=0"
        ),
        "kubectl describe quota -n team; then resources: of the job",
    ),
    "an object of that name": (
        lambda server: server.put("pytorchjobs", item("digits")),
        refused_job('pytorchjobs "digits" already exists'),
        "--set name=OTHER; or launcher stop RUN",
    ),
    "an admission webhook": (
        lambda server: server.faults.append(
            Fault("POST", "/pytorchjobs?dryRun", 403, "admission webhook denied the request: no")
        ),
        refused_job("admission webhook denied the request: no"),
        "kubectl auth can-i",
    ),
    "pod security": (
        lambda server: server.faults.append(
            Fault("POST", "/pods?dryRun", 403, 'violates PodSecurity "restricted:latest"')
        ),
        refused_pod('violates PodSecurity "restricted:latest"'),
        "kubectl describe",
    ),
    "a secret that may not be seen": (
        lambda server: server.faults.append(Fault("GET", "/secrets/registry", 403, "forbidden")),
        ("warning", *REGISTRY, "you may not look at it"),
        "kubectl auth can-i --list",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_with_the_fix_to_type(server, fault):
    plant, row, fix = FAULTS[fault]
    plant(server)
    rows = found()
    status, check, where, told = row
    (bad,) = [r for r in rows if (r.check, r.where) == (check, where)]
    assert (bad.status.value, bad.found) == (status, told)
    assert fix in bad.fix
    assert is_fit(rows) == (status == "warning")
    others = [r for r in rows if r.status is Status.FAILED and r is not bad]
    of_denied = ["pods/log", "PyTorchJob digits"] if fault == "no right" else []
    assert [r.where for r in others] == of_denied


def test_a_cluster_that_does_not_answer_is_the_only_row(server):
    server.close()
    ((status, check, _, told),) = not_ok()
    assert (status, check) == ("failed", "reachable")
    assert "does not answer" in told


def test_context_namespace_and_kind_of_the_command_line_are_those_that_are_asked_about(
    server, typed, tmp_path
):
    server.namespaces.add("others")
    server.put("namespaces", item("others"))
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "nnodes": 2}))
    of_other = ("doctor", "job.yaml", "--on", "kubernetes", "--context", "other", "--kind", "job")
    code, said = typed(*of_other)
    assert code == 0, said
    assert "context other" in said
    assert "PyTorchJob" not in said
    assert [path for _, path, _ in server.requests if "/namespaces/others/jobs" in path]
    assert not [path for _, path, _ in server.requests if "/namespaces/team/" in path]
    code, said = typed("doctor", "job.yaml", "--on", "kubernetes", "-n", "nowhere")
    assert code == 1
    assert "kubectl create namespace nowhere" in said
