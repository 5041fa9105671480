"""Renders a plan as a TrainJob of Kubeflow Trainer (v2), with a runtime of its own."""

from __future__ import annotations

from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.render_gang import (
    VOLCANO_QUEUE,
    WAIT_LIMIT_S,
    in_gang,
    render_gang_metadata,
)
from launcher.targets.kubernetes.render_job_spec import render_failure_policy, render_replacements
from launcher.targets.kubernetes.render_pod import (
    Object,
    pods_of,
    render_config_map,
    render_metadata,
    render_template,
)

GROUP = "trainer.kubeflow.org"
NODE = "node"
"""Job and container into which the trainer injects its variables."""


def render_trainjob(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap, the runtime that holds the pod, and the TrainJob that names it."""
    return render_config_map(plan), _runtime(plan), _trainjob(plan)


def _trainjob(plan: LaunchPlan) -> Object:
    node = plan.nodes[0]
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": render_gang_metadata(plan),
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": plan.job_name},
            # Left out, the trainer would inject nothing.
            "trainer": {
                "numNodes": len(plan.nodes),
                "numProcPerNode": node.nproc_per_node,
            },
        },
    }


def _runtime(plan: LaunchPlan) -> Object:
    metadata = render_metadata(plan)
    metadata["labels"] = {**metadata["labels"], f"{GROUP}/framework": "torch"}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata,
        "spec": {
            "mlPolicy": {"numNodes": len(plan.nodes), "torch": {}},
            **_pod_group_policy(plan),
            "template": {**_queue(plan), "spec": _jobset(plan)},
        },
    }


def _jobset(plan: LaunchPlan) -> Object:
    template = in_gang(plan, render_template(plan, NODE, restartPolicy="Never"), own_group=False)
    job = {
        "backoffLimit": render_replacements(plan),
        "podFailurePolicy": render_failure_policy(NODE, replaces=True),
        "template": template,
    }
    step = {"labels": {f"{GROUP}/trainjob-ancestor-step": "trainer"}}
    return {
        "network": {"publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": NODE, "template": {"metadata": step, "spec": job}}],
    }


def _pod_group_policy(plan: LaunchPlan) -> Object:
    match pods_of(plan).gang:
        case "volcano":
            return {"podGroupPolicy": {"volcano": {}}}
        case "coscheduling":
            limit = {"scheduleTimeoutSeconds": WAIT_LIMIT_S}
            return {"podGroupPolicy": {"coscheduling": limit}}
    return {}


def _queue(plan: LaunchPlan) -> Object:
    pods = pods_of(plan)
    if pods.gang != "volcano" or pods.queue is None:
        return {}
    return {"metadata": {"annotations": {VOLCANO_QUEUE: pods.queue}}}
