"""Every rendered object against the official models, Kubernetes' own schemas and the CRDs.

A model that does not know a field drops it: what is read back must be what was rendered.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes import client

from tests.k8s.crds import CRD_DIR, crd_schemas
from tests.k8s.manifests_table import TABLE, manifest_of, pod_specs

ROOT = Path(__file__).parents[2]
CORE = {"v1", "batch/v1", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1"}
CORE_MODELS = {
    "ConfigMap": "V1ConfigMap",
    "Service": "V1Service",
    "Job": "V1Job",
    "PersistentVolumeClaim": "V1PersistentVolumeClaim",
    "NetworkPolicy": "V1NetworkPolicy",
    "PodDisruptionBudget": "V1PodDisruptionBudget",
    "ServiceAccount": "V1ServiceAccount",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
}
OPERATORS_MODELS = {
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "JobSet": "JobsetV1alpha2JobSet",
}
SCHEDULERS_OWN = {"PodGroup"}
"""Without an official Python model: held to their CRD alone."""


class Answer:
    """What the official clients read an object from."""

    def __init__(self, value: Any) -> None:
        self.data = json.dumps(value)


def read_back(value: Any, model: str, models: Any = client) -> Any:
    """The value as the client's typed model keeps it. Raises where a type or enum is wrong."""
    api = client.ApiClient()
    if models is client:
        return api.sanitize_for_serialization(api.deserialize(Answer(value), model))
    training = importlib.import_module("kubeflow.training").ApiClient()
    return training.sanitize_for_serialization(training.deserialize(Answer(value), model))


def typed(one: dict[str, Any]) -> Any:
    """The object as the official package of its kind reads it."""
    kind = one["kind"]
    if one["apiVersion"] in CORE:
        return read_back(one, CORE_MODELS[kind])
    if kind == "PyTorchJob":
        training = importlib.import_module("kubeflow.training.models")
        return read_back(one, "KubeflowOrgV1PyTorchJob", training)
    models = importlib.import_module("kubeflow_trainer_api.models")
    return getattr(models, OPERATORS_MODELS[kind]).from_dict(one).to_dict()


SCHEMAS = crd_schemas()


def objects() -> list[Any]:
    rendered = [
        pytest.param(one, id=f"{name}-{one['kind']}")
        for name, fields in TABLE.items()
        for one in manifest_of(**fields).objects
    ]
    written = [
        pytest.param(one, id=f"{path.relative_to(ROOT)}-{one['kind']}")
        for path in sorted((ROOT / "k8s").rglob("*.yaml"))
        if path.name != "kustomization.yaml" and not path.is_symlink()
        for one in yaml.load_all(path.read_text(), yaml.CSafeLoader)
    ]
    return rendered + written


OBJECTS = objects()


@pytest.mark.parametrize("one", OBJECTS)
def test_the_official_models_read_every_field(one: dict[str, Any]) -> None:
    if one["kind"] in SCHEDULERS_OWN:
        return
    assert typed(one) == one


@pytest.mark.parametrize("one", OBJECTS)
def test_every_pod_is_read_by_the_model_of_pods(one: dict[str, Any]) -> None:
    for pod in pod_specs(one):
        assert read_back(pod, "V1PodSpec") == pod


@pytest.mark.parametrize("one", [case for case in OBJECTS if case.values[0]["apiVersion"] in CORE])
def test_kubernetes_own_schemas_accept_core_objects_strictly(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("one", OBJECTS)
def test_kubernetes_own_schemas_accept_every_pod_strictly(one: dict[str, Any]) -> None:
    for spec in pod_specs(one):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(CRD_DIR is None, reason="CRD_DIR names no folder of CRDs")
@pytest.mark.parametrize(
    "one", [case for case in OBJECTS if case.values[0]["apiVersion"] not in CORE]
)
def test_the_crds_know_every_field(one: dict[str, Any]) -> None:
    problems = SCHEMAS[one["apiVersion"], one["kind"]].iter_errors(one)
    assert [f"{'.'.join(map(str, p.path))}: {p.message[:200]}" for p in problems] == []


@pytest.mark.skipif(CRD_DIR is None, reason="CRD_DIR names no folder of CRDs")
def test_the_crds_refuse_a_field_that_they_do_not_know() -> None:
    job = manifest_of(**TABLE["pytorchjob-elastic"]).objects[-1]
    wrong = {**job, "spec": {**job["spec"], "elasticPolicies": {}}}
    assert list(SCHEMAS[job["apiVersion"], job["kind"]].iter_errors(wrong))


def test_the_models_drop_a_field_that_they_do_not_know() -> None:
    for name in ("pytorchjob-elastic", "trainjob-fixed", "jobset-fixed", "job-fixed"):
        job = manifest_of(**TABLE[name]).objects[-1]
        wrong = {**job, "spec": {**job["spec"], "unheard": "of"}}
        assert typed(wrong) != wrong
