"""Renders the pod of a node, the same for every kind: user, probes, grace, placement, resources,
volumes; and the agent's ConfigMap.

Admissible under Pod Security ``restricted``, unless the job asks for what that forbids.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any

from launcher.contract import protocol
from launcher.contract.node_plan import Env
from launcher.job.values import render_bytes
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_archive import read_agent_version, read_archive
from launcher.targets.docker_options import PYTHON
from launcher.targets.kubernetes.plan import GPU_RESOURCE, PodSettings, render_kept_plan
from launcher.targets.kubernetes.render.code import (
    render_code_mount,
    render_code_volumes,
    render_unpacking,
)

Object = dict[str, Any]

STOP_MARGIN_S = 15
"""On top of the job's grace, for the agent to report after its workers have ended."""
TOKEN_VERBS = ("create", "patch", "delete")
"""Rights on Secrets by which a launcher makes the token of a run, and deletes it."""
PROBE_PERIOD_S = 20
PROBE_LIMIT_S = 10
"""How long an agent may take to answer a probe."""
STARTUP_FAILURES = 1200
"""Seconds until an agent must answer: torch may come from a cold disk that many nodes share."""
PROBE_FAILURES = 15
"""For an agent that no longer answers: it ends hangs of workers itself, and sooner."""

AGENT_FIX = (
    "build the image again (make image, make push) under a new tag, or with "
    "kubernetes.image_pull_policy: Always; or --set agent.in_image=false"
)
"""A node that holds the image would not pull it again under the same tag."""
CHECK = """\
read -r agent <{file} || agent=none
[ "$agent" = {version} ] && exec {agent}
echo "error: the image holds agent $agent, this manifest was made for {version}" >&2
echo "  fix: {fix}" >&2
exit 2
"""
"""The command of a pod whose image holds the agent. No ``$(``: Kubernetes would replace it."""


def given(**fields: Any) -> Object:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value}


def render_metadata(plan: LaunchPlan, name: str | None = None) -> Object:
    """Name, namespace and labels of one of the job's objects."""
    place = given(name=name or plan.job_name, namespace=PodSettings.of(plan).namespace)
    return {**place, "labels": render_labels(plan)}


def render_labels(plan: LaunchPlan) -> Object:
    """Labels by which the job's objects and pods are found."""
    return {
        "app.kubernetes.io/managed-by": "launcher",
        protocol.LABEL_JOB: plan.job_name,
        protocol.LABEL_RUN_ID: plan.run_id,
    }


# -- the agent's ConfigMap --------------------------------------------------------------------


def render_config_map(plan: LaunchPlan) -> Object:
    """The plan, and the agent's archive if the image does not hold it.

    Its name has a hash of its content: running pods keep what they have.
    """
    archive = {protocol.AGENT_ARCHIVE: base64.b64encode(read_archive()).decode()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": render_metadata(plan, _config_map_name(plan)),
        "immutable": True,
        "data": {protocol.NODE_TASK_FILE: render_kept_plan(plan)},
        **({} if has_own_agent(plan) else {"binaryData": archive}),
    }


def has_own_agent(plan: LaunchPlan) -> bool:
    """Whether the pods start the agent of their image."""
    return plan.agent is not None and plan.agent.in_image


def _config_map_name(plan: LaunchPlan) -> str:
    text = render_kept_plan(plan) + read_agent_version()
    return f"{plan.job_name}-plan-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def token_name(plan: LaunchPlan) -> str:
    """The Secret with the run's token; of a rendered manifest, one that a person may make."""
    return f"{plan.run_id}-token"


def render_token(plan: LaunchPlan) -> Object:
    """A new token for a run. Only for a submission: it is no part of what is rendered."""
    metadata = render_metadata(plan, token_name(plan))
    data = {protocol.TOKEN_FILE: base64.b64encode(secrets.token_hex(32).encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


# -- the pod ----------------------------------------------------------------------------------


def render_template(plan: LaunchPlan, container: str, *, env: Env = (), **pod: Any) -> Object:
    """The pod's template. ``env``: what no operator injects; ``pod``: more fields of its spec."""
    return {
        "metadata": {"labels": render_labels(plan)},
        "spec": {**_render_pod(plan, container, env), **pod},
    }


def render_trial_pod(plan: LaunchPlan) -> Object:
    """A pod as the job's controller would make one, for a dry run."""
    template = render_template(plan, "node", env=size_variables(plan), restartPolicy="Never")
    # A node's name may be a host name; a pod with dots in its name is warned of.
    metadata = render_metadata(plan, plan.nodes[0].name.partition(".")[0])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def size_variables(plan: LaunchPlan) -> Env:
    """The sizes, if no operator injects them; patched sizes reach the agent."""
    node = plan.nodes[0]
    sizes = dict.fromkeys((node.min_nodes, node.max_nodes))
    return (
        (protocol.NNODES, ":".join(map(str, sizes))),
        (protocol.NPROC_PER_NODE, str(node.nproc_per_node)),
    )


def _render_pod(plan: LaunchPlan, container: str, env: Env) -> Object:
    pods = PodSettings.of(plan)
    return {
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
        **given(initContainers=_init_containers(plan, pods)),
        "containers": [_render_container(plan, pods, container, env)],
        "volumes": _volumes(plan, pods),
        **given(
            hostNetwork=pods.host_network,
            dnsPolicy="ClusterFirstWithHostNet" if pods.host_network else None,
            serviceAccountName=pods.service_account,
            imagePullSecrets=[{"name": name} for name in pods.image_pull_secrets],
        ),
    }


def _placement(plan: LaunchPlan, pods: PodSettings) -> Object:
    """Which nodes the pods go to."""
    same_job = {"matchLabels": {protocol.LABEL_JOB: plan.job_name}}
    apart = {"labelSelector": same_job, "topologyKey": "kubernetes.io/hostname"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": same_job,
    }
    spreads = len(plan.nodes) > 1 and not pods.whole_node
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    return given(
        priorityClassName=pods.priority_class,
        nodeSelector=dict(pods.node_selector),
        tolerations=[dict(toleration) for toleration in pods.tolerations],
        affinity=anti if pods.whole_node else None,
        topologySpreadConstraints=[spread] if spreads else None,
    )


def _render_container(plan: LaunchPlan, pods: PodSettings, name: str, env: Env) -> Object:
    return {
        "name": name,
        **_image(plan, pods),
        "command": _command(plan),
        "env": _env(plan, pods, env),
        **given(workingDir=plan.nodes[0].workdir, resources=_resources(plan, pods)),
        "securityContext": _security(add=["IPC_LOCK"] if pods.rdma_devices else None),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(plan, pods),
        **_probes(plan, pods),
    }


def _init_containers(plan: LaunchPlan, pods: PodSettings) -> list[Object]:
    if plan.code is None:
        return []
    devices = (GPU_RESOURCE, pods.rdma_resource)
    resources = {
        kind: left
        for kind, wanted in _resources(plan, pods).items()
        if (left := {name: amount for name, amount in wanted.items() if name not in devices})
    }
    return [render_unpacking(plan, _image(plan, pods), _security(), resources)]


def _image(plan: LaunchPlan, pods: PodSettings) -> Object:
    return {"image": plan.image, **given(imagePullPolicy=pods.image_pull_policy)}


def _security(**capabilities: list[str] | None) -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": given(drop=["ALL"], **capabilities),
    }


def _command(plan: LaunchPlan) -> list[str]:
    agent = [PYTHON, protocol.CONTAINER_AGENT, protocol.CONTAINER_TASK]
    if not has_own_agent(plan):
        return agent
    check = CHECK.format(
        file=protocol.CONTAINER_AGENT_VERSION,
        version=read_agent_version(),
        fix=AGENT_FIX,
        agent=" ".join(agent),
    )
    return ["sh", "-c", check]


def _env(plan: LaunchPlan, pods: PodSettings, env: Env) -> list[Object]:
    """The pod's own name and address, ``env``, and secrets by reference, never by value."""
    paths = ((protocol.POD_NAME, "metadata.name"), (protocol.POD_IP, "status.podIP"))
    secrets = plan.nodes[0].secrets
    keys = ((name, {"secretKeyRef": {"name": pods.secret, "key": name}}) for name in secrets)
    fields = ((name, {"fieldRef": {"fieldPath": path}}) for name, path in paths)
    return [
        *({"name": name, "valueFrom": source} for name, source in fields),
        *({"name": name, "value": value} for name, value in env),
        *({"name": name, "valueFrom": source} for name, source in keys),
    ]


def _resources(plan: LaunchPlan, pods: PodSettings) -> Object:
    """Requests equal limits, so that no other pod uses what the training reserved."""
    milli, memory = round((plan.resources.cpus or 0) * 1000), plan.resources.memory_bytes
    cpu = f"{milli}m" if milli % 1000 else str(milli // 1000)
    wanted = given(
        cpu=milli and cpu,
        memory=memory and render_bytes(memory),
        **{GPU_RESOURCE: pods.gpus and str(pods.gpus)},
        **{pods.rdma_resource: pods.rdma_devices and str(pods.rdma_devices)},
    )
    return given(requests=wanted, limits=dict(wanted))


def _probes(plan: LaunchPlan, pods: PodSettings) -> Object:
    """Startup and liveness probes. A readiness probe would hide the names by which nodes meet.

    An agent that waits for others counts as healthy, so no probe ends a rendezvous.
    """
    if pods.probe_port is None or plan.is_hold:
        return {}
    get = {"httpGet": {"path": "/healthz", "port": "health"}}
    alive = {"periodSeconds": PROBE_PERIOD_S, "timeoutSeconds": PROBE_LIMIT_S}
    return {
        "ports": [{"name": "health", "containerPort": pods.probe_port, "protocol": "TCP"}],
        # Every second, as the training operator's Services name a pod only once it has passed.
        "startupProbe": {**get, "periodSeconds": 1, "failureThreshold": STARTUP_FAILURES},
        "livenessProbe": {**get, **alive, "failureThreshold": PROBE_FAILURES},
    }


# -- storage ----------------------------------------------------------------------------------


def _mounts(plan: LaunchPlan, pods: PodSettings) -> list[Object]:
    names = _claim_names(pods)
    run = names[pods.run.name] if pods.run else "run"
    checkpoints = names[pods.checkpoint.name] if pods.checkpoint else "checkpoints"
    # By subPath: without it Kubernetes changes the files under running agents.
    files = [(protocol.CONTAINER_TASK, protocol.NODE_TASK_FILE)]
    if not has_own_agent(plan):
        files.append((protocol.CONTAINER_AGENT, protocol.AGENT_ARCHIVE))
    return [
        *(given(name="plan", mountPath=p, subPath=name, readOnly=True) for p, name in files),
        {"name": "token", "mountPath": protocol.CONTAINER_TOKEN, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": run, "mountPath": protocol.CONTAINER_RUN_DIR},
        {"name": checkpoints, "mountPath": protocol.CONTAINER_CHECKPOINT_DIR},
        *([render_code_mount()] if plan.code else []),
        *(
            given(
                name=names[volume.claim.name],
                mountPath=volume.target,
                subPath=volume.claim.folder,
                readOnly=volume.read_only,
            )
            for volume in pods.volumes
        ),
    ]


def _volumes(plan: LaunchPlan, pods: PodSettings) -> list[Object]:
    shm = render_bytes(plan.resources.shm_bytes)
    disks = (("run", pods.run), ("checkpoints", pods.checkpoint))
    secret = {"secretName": token_name(plan), "optional": True}
    return [
        {"name": "plan", "configMap": {"name": _config_map_name(plan)}},
        # Without it the agents take whoever can reach them.
        {"name": "token", "secret": {**secret, "defaultMode": 0o400}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
        *({"name": name, "emptyDir": {}} for name, claim in disks if claim is None),
        *(render_code_volumes(plan) if plan.code else []),
        *(
            {"name": name, "persistentVolumeClaim": {"claimName": claim}}
            for claim, name in _claim_names(pods).items()
        ),
    ]


def _claim_names(pods: PodSettings) -> dict[str, str]:
    """Names of volumes by claim; a claim's own name may be too long."""
    return {name: f"claim-{index}" for index, name in enumerate(pods.claims)}
