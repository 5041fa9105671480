"""The token of a run on a cluster: a Secret that its launcher makes, and that is never shown."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.render.manifest import render_manifest
from launcher.targets.kubernetes.render.pod import token_name
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import plan_in
from tests.launcher.fake_cluster import FakeCluster


@pytest.fixture
def submitted(server: FakeCluster, tmp_path: Path) -> tuple[FakeCluster, KubernetesTarget, Any]:
    plan, target = plan_in(tmp_path), KubernetesTarget(tmp_path / "runs")
    RunFolder(Path(plan.run_dir)).create(plan, target.render(plan).shell(), 1.0)
    target.submit(plan)
    return server, target, plan


def token_of(server: FakeCluster) -> str:
    (secret,) = (item for (plural, _), item in server.objects.items() if plural == "secrets")
    return base64.b64decode(secret["data"]["token"]).decode()


def test_it_is_in_the_secret_alone_and_goes_with_the_run(submitted, tmp_path):
    server, target, plan = submitted
    token = token_of(server)
    assert len(token) == 64
    spec = server.objects["jobs", "digits"]["spec"]["template"]["spec"]
    (volume,) = (one["secret"] for one in spec["volumes"] if one["name"] == "token")
    assert volume == {"secretName": token_name(plan), "optional": True, "defaultMode": 0o400}
    shown = [str(item) for (plural, _), item in server.objects.items() if plural != "secrets"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    shown += [path.read_text(errors="replace") for path in files]
    shown += [str(target.notes), target.preview(plan, "launcher render")]
    assert len(files) >= 3
    assert [text for text in shown if token in text or encoded(token) in text] == []
    target.stop(plan.run_id, 0)
    assert not server.objects


def encoded(token: str) -> str:
    return base64.b64encode(token.encode()).decode()


def test_one_that_a_killed_launcher_has_left_is_found_without_reading_secrets(server, tmp_path):
    plan, target = plan_in(tmp_path), KubernetesTarget(tmp_path / "runs")
    RunFolder(Path(plan.run_dir)).create(plan, "", 1.0)
    server.denied |= {("get", "secrets"), ("list", "secrets")}
    target.submit(plan)
    # It was killed before it had made the job.
    del server.objects["jobs", "digits"]
    del server.objects["secrets", token_name(plan)]["metadata"]["ownerReferences"]
    target.stop(plan.run_id, 0)
    assert ("secrets", token_name(plan)) not in server.objects


def test_the_secret_that_somebody_made_for_a_manifest_stays(server, tmp_path):
    plan = replace(plan_in(tmp_path), run_id="digits", run_dir=str(tmp_path / "runs/digits"))
    RunFolder(Path(plan.run_dir)).create(plan, "", 1.0)
    metadata = {"name": "digits-token", "namespace": "team"}
    server.put("secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    target = KubernetesTarget(tmp_path / "runs")
    *others, job = render_manifest(plan).objects
    for item in (*others, job):
        target.job(plan).cluster.apply(item)
    assert "secretName: digits-token" in render_manifest(plan).yaml()
    assert "optional, before it: the Secret digits-token" in render_manifest(plan).yaml()
    target.stop("digits", 0)
    assert {name for _, name in server.objects} == {"digits-token"}


@pytest.mark.parametrize("verb", ["create", "patch"])
def test_who_may_make_no_secret_runs_without_and_is_told(verb, server, tmp_path):
    server.denied.add((verb, "secrets"))
    target = KubernetesTarget(tmp_path / "runs")
    target.submit(plan_in(tmp_path))
    assert ("jobs", "digits") in server.objects
    assert not any(plural == "secrets" for plural, _ in server.objects)
    (note,) = (note for note in target.notes if "secrets" in note)
    assert "whoever reaches the pods may join the run; k8s/base/rbac.yaml grants it" in note
