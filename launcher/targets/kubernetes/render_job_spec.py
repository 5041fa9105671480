"""The specification of an Indexed Job, alone or inside a JobSet."""

from __future__ import annotations

from launcher.contract.errors import ExitCode
from launcher.contract.reasons import RETRY_FROM
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.render_pod import Object

NOT_STARTED = (126, 127, 128)
"""What a shell or a container's runtime says of a program that it cannot start; 128 is the
kubelet's for StartError, and no signal's."""
LOSSES_PER_NODE = 3
"""How many pods may fail for each node of the job, whose cause is worth a retry."""


def render_failure_policy(container: str, *, replaces: bool) -> Object:
    """A permanent exit code ends the job; ``replaces``: a disrupted pod is none."""
    own = [int(code) for code in ExitCode if 0 < code < RETRY_FROM]
    condition = {"type": "DisruptionTarget", "status": "True"}
    disrupted = {"action": "Ignore", "onPodConditions": [condition]}
    codes = {"containerName": container, "operator": "In", "values": [*own, *NOT_STARTED]}
    permanent = {"action": "FailJob", "onExitCodes": codes}
    return {"rules": [disrupted, permanent] if replaces else [permanent]}


def render_replacements(plan: LaunchPlan) -> int:
    """``backoffLimit`` of a job whose pods are replaced one by one."""
    return LOSSES_PER_NODE * len(plan.nodes)
