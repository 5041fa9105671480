"""The pod that every kind of Kubernetes object starts a node in, and the agent's ConfigMap.

Admissible under Pod Security ``restricted``, unless the job asks for what that forbids.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.node_plan import Env
from launcher.job.quantity import render_bytes
from launcher.job.storage import Claim
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_files import read_archive
from launcher.targets.container import PYTHON
from launcher.targets.kubernetes.plan import render_kept_plan
from launcher.targets.kubernetes.pods import PodSettings, Toleration

Object = dict[str, Any]

STOP_MARGIN_S = 15
"""On top of the job's grace, for the agent to report after its workers have ended."""
START_LIMIT_S = 1200
"""How long the agent may take to import torch, from a cold disk that many nodes share."""
PROBE_PERIOD_S = 20
PROBE_FAILURES = 15
"""The agent ends a hang itself, and sooner; the kubelet is for an agent that is gone."""
GPU_RESOURCE = "nvidia.com/gpu"
HOST_KEY = "kubernetes.io/hostname"
MANAGED_BY: Env = (("app.kubernetes.io/managed-by", "launcher"),)

_TEXT = r'("(?:[^"\\]|\\.)*")'
_PAIR = re.compile(rf"\[\s+{_TEXT},\s+{_TEXT}\s+\]")


def pods_of(plan: LaunchPlan) -> PodSettings:
    """The plan's pod settings; a plan for Kubernetes has them."""
    return PodSettings.of(plan)


def render_metadata(plan: LaunchPlan, name: str | None = None, **more: Any) -> Object:
    """Name, namespace and labels of one of the job's objects."""
    namespace = pods_of(plan).namespace
    return {
        "name": name or plan.job_name,
        **({"namespace": namespace} if namespace else {}),
        "labels": render_labels(plan),
        **more,
    }


def render_labels(plan: LaunchPlan) -> Object:
    """What the job's objects and pods are found by."""
    return {
        **dict(MANAGED_BY),
        protocol.LABEL_JOB: plan.job_name,
        protocol.LABEL_RUN_ID: plan.run_id,
    }


# -- the agent's ConfigMap --------------------------------------------------------------------


def render_config_map(plan: LaunchPlan) -> Object:
    """The agent's archive, its task, and the plan for launchers on other machines.

    Named by its content: running pods keep what they have.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": render_metadata(plan, _config_map_name(plan)),
        "immutable": True,
        "data": {
            protocol.NODE_TASK_FILE: _task(plan),
            protocol.PLAN_FILE: render_kept_plan(plan),
        },
        "binaryData": {protocol.AGENT_ARCHIVE: base64.b64encode(read_archive()).decode()},
    }


def _config_map_name(plan: LaunchPlan) -> str:
    texts = (_task(plan), render_kept_plan(plan))
    digest = hashlib.sha256(read_archive() + "".join(texts).encode()).hexdigest()
    return f"{plan.job_name}-agent-{digest[:8]}"


def _task(plan: LaunchPlan) -> str:
    """Node 0's; each pod's agent finds out which node it is."""
    assert plan.agent is not None, "pods need the agent"
    task = NodeTask(node=plan.nodes[0], settings=plan.agent)
    text = json.dumps(json.loads(task.to_json()), indent=2)
    return _PAIR.sub(r"[\1, \2]", text) + "\n"


# -- the pod ----------------------------------------------------------------------------------


def render_template(plan: LaunchPlan, container: str, *, env: Env = (), **pod: Any) -> Object:
    """The pod's template. ``env`` is what no operator injects; ``pod`` are more of its fields."""
    return {
        "metadata": {"labels": render_labels(plan)},
        "spec": {**_render_pod(plan, container, env), **pod},
    }


def render_trial_pod(plan: LaunchPlan) -> Object:
    """A pod as the job's controller would make one, to be tried and never made."""
    template = render_template(plan, "node", env=told_by_hand(plan), restartPolicy="Never")
    metadata = render_metadata(plan, f"{plan.job_name}-trial")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def told_by_hand(plan: LaunchPlan) -> Env:
    """The sizes that an operator would inject: patched there, they reach the agent."""
    node = plan.nodes[0]
    sizes = dict.fromkeys((node.min_nodes, node.max_nodes))
    return (
        (protocol.NNODES, ":".join(map(str, sizes))),
        (protocol.NPROC_PER_NODE, str(node.nproc_per_node)),
    )


def _render_pod(plan: LaunchPlan, container: str, env: Env) -> Object:
    pods = pods_of(plan)
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": plan.stop_grace_s + STOP_MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": pods.uid,
            "runAsGroup": pods.uid,
            "fsGroup": pods.uid,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_placement(plan, pods),
        "containers": [_render_container(plan, pods, container, env)],
        "volumes": _volumes(plan, pods),
    }
    if pods.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if pods.service_account:
        spec["serviceAccountName"] = pods.service_account
    if pods.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pods.image_pull_secrets]
    return spec


def _placement(plan: LaunchPlan, pods: PodSettings) -> Object:
    """Which nodes the pods go to."""
    found: Object = {}
    if pods.priority_class:
        found["priorityClassName"] = pods.priority_class
    if pods.node_selector:
        found["nodeSelector"] = dict(pods.node_selector)
    if pods.tolerations:
        found["tolerations"] = [_toleration(one) for one in pods.tolerations]
    same_job = {"matchLabels": {protocol.LABEL_JOB: plan.job_name}}
    if pods.whole_node:
        term = {"labelSelector": same_job, "topologyKey": HOST_KEY}
        found["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
    elif len(plan.nodes) > 1:
        found["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": HOST_KEY,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": same_job,
            }
        ]
    return found


def _toleration(one: Toleration) -> Object:
    fields = {
        "key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def _render_container(plan: LaunchPlan, pods: PodSettings, name: str, env: Env) -> Object:
    node = plan.nodes[0]
    capabilities: Object = {"drop": ["ALL"]}
    if pods.rdma_devices:
        capabilities["add"] = ["IPC_LOCK"]
    container: Object = {
        "name": name,
        "image": plan.image,
        "command": [PYTHON, protocol.CONTAINER_AGENT, protocol.CONTAINER_TASK],
        "env": [*_downward(), *_values(env), *_secrets(node.secrets, pods.secret)],
        **({"workingDir": node.workdir} if node.workdir else {}),
        **_resources(plan, pods),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": capabilities},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(pods),
    }
    return container | _probes(pods)


def _downward() -> list[Object]:
    paths = ((protocol.POD_NAME, "metadata.name"), (protocol.POD_IP, "status.podIP"))
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths]


def _values(env: Env) -> list[Object]:
    return [{"name": name, "value": value} for name, value in env]


def _secrets(names: tuple[str, ...], secret: str) -> list[Object]:
    """By reference, never by value."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
        for name in names
    ]


def _resources(plan: LaunchPlan, pods: PodSettings) -> Object:
    """Requests equal limits: what is promised to the training is not lent to others."""
    wanted: Object = {}
    if plan.resources.cpus is not None:
        milli = round(plan.resources.cpus * 1000)
        wanted["cpu"] = f"{milli}m" if milli % 1000 else str(milli // 1000)
    if plan.resources.memory_bytes is not None:
        wanted["memory"] = render_bytes(plan.resources.memory_bytes)
    if pods.gpus:
        wanted[GPU_RESOURCE] = str(pods.gpus)
    if pods.rdma_devices:
        wanted[pods.rdma_resource] = str(pods.rdma_devices)
    return {"resources": {"requests": wanted, "limits": dict(wanted)}} if wanted else {}


def _probes(pods: PodSettings) -> Object:
    """None for readiness: names that wait for readiness would keep the nodes from meeting.

    Waiting for the others is healthy to the agent, so no probe ends a rendezvous either.
    """
    if pods.probe_port is None:
        return {}
    get = {"httpGet": {"path": "/healthz", "port": "health"}}
    period_s = PROBE_PERIOD_S
    return {
        "ports": [{"name": "health", "containerPort": pods.probe_port, "protocol": "TCP"}],
        "startupProbe": {
            **get, "periodSeconds": 5, "failureThreshold": START_LIMIT_S // 5
        },
        "livenessProbe": {
            **get, "periodSeconds": period_s, "timeoutSeconds": 10,
            "failureThreshold": PROBE_FAILURES,
        },
    }  # fmt: skip


# -- storage ----------------------------------------------------------------------------------


def _mounts(pods: PodSettings) -> list[Object]:
    names = _claim_names(pods)

    def of_claim(claim: Claim | None, otherwise: str) -> str:
        return names[claim.name] if claim else otherwise

    def mount(name: str, path: str, **more: Any) -> Object:
        return {"name": name, "mountPath": path, **more}

    # By subPath, because what lies at these paths would otherwise change under running agents.
    archive = {"subPath": protocol.AGENT_ARCHIVE, "readOnly": True}
    task = {"subPath": protocol.NODE_TASK_FILE, "readOnly": True}
    return [
        mount("agent", protocol.CONTAINER_AGENT, **archive),
        mount("agent", protocol.CONTAINER_TASK, **task),
        mount("shm", "/dev/shm"),
        mount(of_claim(pods.run, "run"), protocol.CONTAINER_RUN_DIR),
        mount(of_claim(pods.checkpoint, "checkpoints"), protocol.CONTAINER_CHECKPOINT_DIR),
        *(
            mount(
                names[one.claim.name],
                one.target,
                **({"subPath": one.claim.folder} if one.claim.folder else {}),
                **({"readOnly": True} if one.read_only else {}),
            )
            for one in pods.volumes
        ),
    ]


def _volumes(plan: LaunchPlan, pods: PodSettings) -> list[Object]:
    shm = render_bytes(plan.resources.shm_bytes)
    disks = (("run", pods.run), ("checkpoints", pods.checkpoint))
    return [
        {"name": "agent", "configMap": {"name": _config_map_name(plan)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
        *({"name": name, "emptyDir": {}} for name, claim in disks if claim is None),
        *(
            {"name": name, "persistentVolumeClaim": {"claimName": claim}}
            for claim, name in _claim_names(pods).items()
        ),
    ]


def _claim_names(pods: PodSettings) -> dict[str, str]:
    """Volumes' names by claim: a claim's own may be too long for one."""
    claims = (pods.checkpoint, pods.run, *(volume.claim for volume in pods.volumes))
    names = dict.fromkeys(claim.name for claim in claims if claim is not None)
    return {name: f"claim-{index}" for index, name in enumerate(names)}
