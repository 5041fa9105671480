"""What is decided about pods before anything is submitted: names, storage, probes, refusals."""

from typing import Any

import pytest

from launcher.contract.errors import InputError
from launcher.targets.kubernetes.plan import HEALTH_PORT
from launcher.targets.kubernetes.render.pod import PROBE_FAILURES, PROBE_PERIOD_S
from tests.k8s.manifests_table import (
    DURABLE,
    ELASTIC,
    FIXED,
    KINDS,
    TABLE,
    manifest_of,
    plan_of,
    pod_specs,
)


def pod_of(**fields: Any) -> dict[str, Any]:
    return pod_specs(list(manifest_of(**fields).objects))[0]


def container_of(**fields: Any) -> dict[str, Any]:
    return dict(pod_of(**fields)["containers"][0])


# -- names ------------------------------------------------------------------------------------


def names_of_pods(kind: str, name: str, index: int) -> str:
    """As their controllers make them; a Job's pods have a random suffix of five."""
    return {
        "pytorchjob": f"{name}-worker-{index}",
        "trainjob": f"{name}-node-0-{index}-abcde",
        "jobset": f"{name}-node-0-{index}-abcde",
        "job": f"{name}-{index}-abcde",
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_name_is_short_enough_for_all_that_is_made_from_it(kind):
    manifest = manifest_of(**TABLE[f"{kind}-long"])
    for one in manifest.objects:
        assert len(one["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in one["metadata"]["labels"].values())
        # Kubeflow Trainer takes no longer one from v2.4 on.
        for spec in (one.get("spec", {}), one.get("spec", {}).get("template", {}).get("spec", {})):
            assert all(len(job["name"]) <= 20 for job in spec.get("replicatedJobs", ()))
    assert len(names_of_pods(kind, "n" * 40, 9999)) <= 63


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("pytorchjob-fixed", "digits-worker-0", "digits-worker-1"),
        ("pytorchjob-static", "digits-master-0", "digits-worker-0"),
        ("trainjob-fixed", "digits-node-0-0.digits", "digits-node-0-1.digits"),
        ("jobset-fixed", "digits-node-0-0.digits", "digits-node-0-1.digits"),
        ("job-fixed", "digits-0.digits", "digits-1.digits"),
    ],
)
def test_nodes_are_reached_by_the_names_that_their_controller_gives(name, first, second):
    plan = plan_of(**TABLE[name])
    assert [node.local_addr for node in plan.nodes][:2] == [first, second]
    assert dict(plan.nodes[0].env)["LAUNCHER_RDZV_ENDPOINT"].partition(":")[0] == first
    assert plan.agent is not None
    if "static" not in name:
        assert [store.host for store in plan.agent.stores][:2] == [first, second]


# -- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TABLE if "volcano" in name])
def test_a_gang_is_as_large_as_the_job_s_smallest_size(name):
    objects = manifest_of(**TABLE[name]).objects
    smallest = 2 if "elastic" in name else 3
    groups = [one["spec"]["minMember"] for one in objects if one["kind"] == "PodGroup"]
    policies = [
        one["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"]
        for one in objects
        if one["kind"] == "PyTorchJob"
    ]
    assert groups + policies == ([] if name.startswith("trainjob") else [smallest])
    assert pod_of(**TABLE[name])["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    ("fields", "workers"),
    [
        ({"nproc_per_node": 3}, 3),
        ({"nproc_per_node": "auto"}, 1),
        ({"nproc_per_node": "auto", "resources": {"cpus": 4}}, 4),
        ({"nproc_per_node": "auto", "resources": {"cpus": 4, "gpus": 8}}, 8),
        ({"nproc_per_node": "gpu", "resources": {"gpus": 8}}, 8),
        ({"nproc_per_node": "cpu", "resources": {"cpus": 4.5, "gpus": 8}}, 4),
    ],
)
def test_workers_follow_from_what_a_pod_is_given(fields, workers):
    assert plan_of(**fields).nodes[0].nproc_per_node == workers


# -- probes ------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TABLE if not name.endswith("everything")])
def test_requests_are_limits_and_no_probe_waits_for_readiness(name):
    plan, container = plan_of(**TABLE[name]), container_of(**TABLE[name])
    resources = container.get("resources", {})
    assert resources.get("requests") == resources.get("limits")
    assert "readinessProbe" not in container
    assert container["ports"][0]["containerPort"] == HEALTH_PORT
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert plan.agent.health_port == HEALTH_PORT
    assert plan.agent.hang_min_s <= PROBE_PERIOD_S * PROBE_FAILURES, "the agent acts first"


def test_on_a_machine_s_network_nothing_listens_unless_it_was_asked_for():
    fields = {**FIXED, "kubernetes": {**DURABLE, "host_network": True}}
    assert not {"ports", "livenessProbe", "startupProbe"} & set(container_of(**fields))
    assert plan_of(**fields).agent.health_port is None  # type: ignore[union-attr]


# -- placement --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "operator"),
    [
        ({"key": "dedicated", "value": "training", "effect": "NoSchedule"}, "Equal"),
        ({"key": "dedicated"}, "Exists"),
        ({}, "Exists"),
        ({"key": "dedicated", "operator": "Equal"}, "Equal"),
    ],
)
def test_a_toleration_with_a_value_is_of_that_value_alone(given, operator):
    fields = {**FIXED, "kubernetes": {**FIXED["kubernetes"], "tolerations": [given]}}
    assert pod_of(**fields)["tolerations"] == [{**given, "operator": operator}]


# -- refusals ---------------------------------------------------------------------------------

SHM = {"memory": "1Gi", "shm": "1Gi"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"nnodes": "1:2"}, "kubernetes.checkpoint is not set, but nnodes is 1:2"),
        ({"max_restarts": 1}, "kubernetes.checkpoint is not set, but max_restarts is 1"),
        ({"checkpoint_dir": "./c"}, "checkpoint_dir is ./c, a folder of no pod"),
        ({"mounts": ["./data:/data:ro"]}, "mounts: ./data is a folder of this machine"),
        ({"engine": "torchrun"}, "engine: torchrun, but on Kubernetes the agent"),
        ({"nproc_per_node": "gpu"}, "without resources.gpus no GPU is asked for"),
        ({"resources": SHM}, "resources.shm is 1Gi of a memory of 1Gi"),
        ({**ELASTIC, "kubernetes": {**DURABLE, "kind": "trainjob"}},
         "nnodes is 2:4, but a trainjob keeps its size"),
        ({**ELASTIC, "kubernetes": {**DURABLE, "kind": "jobset"}},
         "nnodes is 2:4, but a jobset keeps its size"),
        ({"rdzv": {"backend": "static"}, "kubernetes": {"kind": "job"}},
         "rdzv.backend is static, but pods of a job are replaced one by one"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_it_costs_anything(fields, says):
    with pytest.raises(InputError) as caught:
        plan_of(**fields)
    assert says in str(caught.value)
    assert "fix: " in str(caught.value)
