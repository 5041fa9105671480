"""Every rendered object against the official models, Kubernetes' own schemas and the CRDs.

A model that does not know a field drops it: what is read back must be what was rendered.
"""

import kubernetes_validate
import pytest

from tests.k8s.manifests_table import pod_specs
from tests.k8s.test_valid import CORE, MANIFESTS, read_back, typed

SCHEDULERS_OWN = {"PodGroup"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_official_models_and_schemas_know_every_field(name):
    newest = kubernetes_validate.latest_version()
    for one in MANIFESTS[name]:
        if one["kind"] not in SCHEDULERS_OWN:
            assert typed(one) == one
        if one["apiVersion"] in CORE:
            kubernetes_validate.validate(one, newest, strict=True)
        for spec in pod_specs(one):
            assert read_back(spec, "V1PodSpec") == spec
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
            kubernetes_validate.validate(pod, newest, strict=True)
