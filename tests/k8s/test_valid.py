"""Every rendered object against the official models, Kubernetes' own schemas and the CRDs.

A model that does not know a field drops it: what is read back must be what was rendered.
"""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from tests.k8s.crds import CRD_DIR, crd_schemas
from tests.k8s.manifests_table import TABLE, manifest_of

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


def manifests() -> dict[str, list[dict[str, Any]]]:
    """The objects of each job of the table, and of each file of k8s/."""
    found = {name: list(manifest_of(**fields).objects) for name, fields in TABLE.items()}
    for path in sorted((ROOT / "k8s").rglob("*.yaml")):
        # Prometheus' own kinds are tried by its own tools: test_monitoring.py.
        is_ours = path.name != "kustomization.yaml" and path.parent.name != "monitoring"
        if is_ours and not path.is_symlink():
            text = path.read_text()
            found[str(path.relative_to(ROOT))] = list(yaml.load_all(text, yaml.CSafeLoader))
    return found


MANIFESTS = manifests()


@pytest.mark.skipif(CRD_DIR is None, reason="CRD_DIR names no folder of CRDs")
def test_the_crds_know_every_field_and_refuse_others():
    for one in (one for objects in MANIFESTS.values() for one in objects):
        if one["apiVersion"] not in CORE:
            problems = SCHEMAS[one["apiVersion"], one["kind"]].iter_errors(one)
            assert [f"{'.'.join(map(str, p.path))}: {p.message[:200]}" for p in problems] == []
    job = manifest_of(**TABLE["pytorchjob-elastic"]).objects[-1]
    wrong = {**job, "spec": {**job["spec"], "elasticPolicies": {}}}
    assert list(SCHEMAS[job["apiVersion"], job["kind"]].iter_errors(wrong))


@pytest.mark.skipif(CRD_DIR is None, reason="CRD_DIR names no folder of CRDs")
@pytest.mark.parametrize("name", MANIFESTS)
def test_no_crd_adds_a_default_in_a_list_so_that_a_second_apply_changes_nothing(name):
    for one in MANIFESTS[name]:
        if one["apiVersion"] not in CORE:
            schema = SCHEMAS[one["apiVersion"], one["kind"]].schema
            assert list(missing_defaults(one, schema)) == []


def missing_defaults(
    value: Any, schema: Any, where: str = "", in_list: bool = False
) -> Iterator[str]:
    """Fields that the API server fills in within lists, which kubectl compares as a whole."""
    if isinstance(value, list):
        for item in value:
            yield from missing_defaults(item, schema.get("items", {}), f"{where}[]", True)
    elif isinstance(value, dict):
        others = schema.get("additionalProperties")
        known = schema.get("properties", {})
        for key, inner in known.items():
            if in_list and "default" in inner and key not in value:
                yield f"{where}.{key}"
        for key, item in value.items():
            inner = known.get(key) or (others if isinstance(others, dict) else {})
            yield from missing_defaults(item, inner, f"{where}.{key}", in_list)


def test_the_models_drop_a_field_that_they_do_not_know():
    for name in ("pytorchjob-elastic", "trainjob-fixed", "jobset-fixed", "job-fixed"):
        job = manifest_of(**TABLE[name]).objects[-1]
        wrong = {**job, "spec": {**job["spec"], "unheard": "of"}}
        assert typed(wrong) != wrong
