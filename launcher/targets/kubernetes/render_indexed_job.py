"""Renders a plan as a headless Service and an Indexed Job: for clusters without an operator."""

from __future__ import annotations

from launcher.contract import protocol
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.render_gang import in_gang, render_gang_metadata, render_pod_group
from launcher.targets.kubernetes.render_job_spec import render_failure_policy, render_replacements
from launcher.targets.kubernetes.render_pod import (
    Object,
    render_config_map,
    render_metadata,
    render_template,
    told_by_hand,
)

CONTAINER = "node"


def render_indexed_job(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap, the Service that gives the pods their names, and the Job."""
    template = render_template(
        plan,
        CONTAINER,
        env=told_by_hand(plan),
        subdomain=plan.job_name,
        restartPolicy="Never",
    )
    spec = {
        # Equal, and patched together, the Job can be resized.
        "parallelism": len(plan.nodes),
        "completions": len(plan.nodes),
        "completionMode": "Indexed",
        "backoffLimit": render_replacements(plan),
        "podFailurePolicy": render_failure_policy(CONTAINER, replaces=True),
        **_success_policy(plan),
        "template": in_gang(plan, template, own_group=True),
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": render_gang_metadata(plan, may_shrink=True),
        "spec": spec,
    }
    return render_config_map(plan), _service(plan), *render_pod_group(plan), job


def _service(plan: LaunchPlan) -> Object:
    """Publishes names before pods are ready: they become so by meeting."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": render_metadata(plan),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {protocol.LABEL_JOB: plan.job_name},
        },
    }


def _success_policy(plan: LaunchPlan) -> Object:
    """An elastic job is done when its smallest group is: a pod that comes later finds nobody."""
    if not plan.is_elastic:
        return {}
    return {"successPolicy": {"rules": [{"succeededCount": plan.nodes[0].min_nodes}]}}
