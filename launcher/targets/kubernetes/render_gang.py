"""Gang scheduling: what each scheduler wants to be told, so that pods start together or not.

An elastic job asks for its smallest size: it starts with that, and grows.
"""

from __future__ import annotations

from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.render_pod import Object, pods_of, render_metadata

SCHEDULER_NAMES = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler"}
WAIT_LIMIT_S = 300
"""How long a gang holds what it has got already."""
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_MIN = "kueue.x-k8s.io/job-min-parallelism"
KUEUE_EQUAL = "kueue.x-k8s.io/job-completions-equal-parallelism"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"


def render_gang_metadata(plan: LaunchPlan, *, may_shrink: bool = False) -> Object:
    """Metadata of the object that Kueue admits; ``may_shrink``: it may start with MIN pods."""
    pods = pods_of(plan)
    metadata = render_metadata(plan)
    if pods.gang == "kueue":
        metadata["labels"] = {**metadata["labels"], KUEUE_QUEUE: pods.queue}
        if may_shrink and plan.is_elastic:
            smallest = str(plan.nodes[0].min_nodes)
            metadata["annotations"] = {KUEUE_MIN: smallest, KUEUE_EQUAL: "true"}
    return metadata


def render_pod_group(plan: LaunchPlan) -> list[Object]:
    """The PodGroup of pods that no operator makes one for."""
    pods, node = pods_of(plan), plan.nodes[0]
    if pods.gang == "volcano":
        queue = {"queue": pods.queue} if pods.queue else {}
        priority = {"priorityClassName": pods.priority_class} if pods.priority_class else {}
        return [
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": render_metadata(plan),
                "spec": {"minMember": node.min_nodes, **queue, **priority},
            }
        ]
    if pods.gang == "coscheduling":
        return [
            {
                "apiVersion": "scheduling.x-k8s.io/v1alpha1",
                "kind": "PodGroup",
                "metadata": render_metadata(plan),
                "spec": {"minMember": node.min_nodes, "scheduleTimeoutSeconds": WAIT_LIMIT_S},
            }
        ]
    return []


def in_gang(plan: LaunchPlan, template: Object, *, own_group: bool) -> Object:
    """The pod template under its gang's scheduler; ``own_group``: in ``render_pod_group``'s."""
    gang = pods_of(plan).gang
    if gang not in SCHEDULER_NAMES:
        return template
    metadata = dict(template["metadata"])
    if own_group and gang == "volcano":
        metadata["annotations"] = {VOLCANO_GROUP: plan.job_name}
    elif own_group:
        metadata["labels"] = {**metadata["labels"], COSCHEDULING_GROUP: plan.job_name}
    spec = {"schedulerName": SCHEDULER_NAMES[gang], **template["spec"]}
    return {"metadata": metadata, "spec": spec}
