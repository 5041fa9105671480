"""Renders a plan as a PyTorchJob of Kubeflow's training operator (v1)."""

from __future__ import annotations

from launcher.contract.node_plan import Elastic
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.render_gang import WAIT_LIMIT_S, in_gang, render_gang_metadata
from launcher.targets.kubernetes.render_pod import (
    Object,
    pods_of,
    render_config_map,
    render_template,
)

CONTAINER = "pytorch"
"""The operator injects its variables into it, and refuses a job without it."""


def render_pytorchjob(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap, and the job: Workers alone, or Master and Workers where static."""
    is_static = pods_of(plan).has_master
    spec: Object = {
        "nprocPerNode": str(plan.nodes[0].nproc_per_node),
        **({} if is_static else {"elasticPolicy": _elastic_policy(plan)}),
        "runPolicy": _run_policy(plan),
        "pytorchReplicaSpecs": _static_replicas(plan) if is_static else _elastic_replicas(plan),
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": render_gang_metadata(plan),
        "spec": spec,
    }
    return render_config_map(plan), job


def _elastic_policy(plan: LaunchPlan) -> Object:
    """Written out in full, for torchrun as well; of these the agent reads the sizes."""
    node = plan.nodes[0]
    rendezvous = node.rendezvous
    assert isinstance(rendezvous, Elastic), "a static rendezvous has a Master"
    port = {"rdzvPort": rendezvous.endpoint_port} if rendezvous.endpoint_port else {}
    return {
        "rdzvBackend": "c10d",
        **port,
        "rdzvId": rendezvous.id,
        "minReplicas": node.min_nodes,
        "maxReplicas": node.max_nodes,
        "maxRestarts": node.max_restarts,
    }


def _run_policy(plan: LaunchPlan) -> Object:
    """Running pods go when the job has ended: they would hold their GPUs for ever."""
    pods, node = pods_of(plan), plan.nodes[0]
    policy: Object = {"cleanPodPolicy": "Running"}
    if pods.has_master:
        # A failure restarts every container in its place, and each of them counts.
        policy["backoffLimit"] = node.max_restarts * len(plan.nodes)
    if pods.gang in ("volcano", "coscheduling"):
        scheduling: Object = {
            "minAvailable": node.min_nodes,
            "scheduleTimeoutSeconds": WAIT_LIMIT_S,
        }
        if pods.queue:
            scheduling["queue"] = pods.queue
        if pods.priority_class:
            scheduling["priorityClass"] = pods.priority_class
        policy["schedulingPolicy"] = scheduling
    return policy


def _elastic_replicas(plan: LaunchPlan) -> Object:
    # backoffLimit does not end this policy; the agent's permanent exit codes do.
    return {"Worker": _replica(plan, len(plan.nodes), "ExitCode")}


def _static_replicas(plan: LaunchPlan) -> Object:
    workers = len(plan.nodes) - 1
    master = {"Master": _replica(plan, 1, "OnFailure")}
    return master | ({"Worker": _replica(plan, workers, "OnFailure")} if workers else {})


def _replica(plan: LaunchPlan, replicas: int, restart_policy: str) -> Object:
    template = render_template(plan, CONTAINER)
    return {
        "replicas": replicas,
        "restartPolicy": restart_policy,
        "template": in_gang(plan, template, own_group=False),
    }
