"""Renders a plan as a JobSet: when a pod is lost, all of them start again together."""

from __future__ import annotations

from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.render_gang import in_gang, render_gang_metadata, render_pod_group
from launcher.targets.kubernetes.render_job_spec import render_failure_policy
from launcher.targets.kubernetes.render_pod import (
    Object,
    render_config_map,
    render_template,
    told_by_hand,
)

NODE = "node"


def render_jobset(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap and the JobSet, whose only job has a pod for each node."""
    template = render_template(plan, NODE, env=told_by_hand(plan), restartPolicy="Never")
    job = {
        "parallelism": len(plan.nodes),
        "completions": len(plan.nodes),
        "completionMode": "Indexed",
        # The first failed pod fails the job, so that the set starts all of them again.
        "backoffLimit": 0,
        "podFailurePolicy": render_failure_policy(NODE, replaces=False),
        "template": in_gang(plan, template, own_group=True),
    }
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": plan.nodes[0].max_restarts,
            # What no restart can mend; all else is one.
            "rules": [
                {
                    "name": "permanent",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        },
        "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": job}}],
    }
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": render_gang_metadata(plan),
        "spec": spec,
    }
    return render_config_map(plan), *render_pod_group(plan), jobset
