"""Renders a plan as PyTorchJob, TrainJob, JobSet or Indexed Job: which exit codes end it, how many
pods it may lose, its gang.

With gang scheduling, the scheduler starts either all pods or none. Under Volcano an elastic job
asks for its smallest size; it starts with that, and grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.contract import protocol
from launcher.contract.causes import RETRY_FROM
from launcher.contract.errors import ExitCode
from launcher.contract.node_plan import Elastic
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.render.pod import (
    Object,
    given,
    render_config_map,
    render_metadata,
    render_template,
    size_variables,
)

PYTORCH = "pytorch"
"""The training operator injects its variables into this container, and refuses a job without it."""
NODE = "node"
"""The container of all other kinds; the trainer injects its variables into it."""
TRAINER = "trainer.kubeflow.org"
START_FAILURES = (126, 127, 128)
"""Exit codes for a program that a shell or the container runtime cannot start; 128 is the kubelet's
for StartError."""
LOSSES_PER_NODE = 3
"""How many pods may fail for each node of the job, for causes that are worth a retry."""

API_OF_KIND = {
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob"),
    "trainjob": (f"{TRAINER}/v1alpha1", "TrainJob"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "job": ("batch/v1", "Job"),
}
"""API version and kind of a job's own object, by ``kubernetes.kind``."""

VOLCANO = "volcano"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def _object(api_version: str, kind: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _job(plan: LaunchPlan, spec: Object) -> Object:
    return _object(*API_OF_KIND[PodSettings.of(plan).kind], _gang_metadata(plan), spec)


# -- PyTorchJob of Kubeflow's training operator (v1) ----------------------------------------------


def render_pytorchjob(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap, and the job: only Workers, or Master and Workers if static."""
    is_static, others = PodSettings.of(plan).has_master, len(plan.nodes) - 1
    if is_static:
        # Containers restart in place. The operator refuses 0 replicas.
        replicas = {"Master": _replica(plan, 1, "OnFailure")}
        replicas |= {"Worker": _replica(plan, others, "OnFailure")} if others else {}
    else:
        # Under this policy backoffLimit ends no job; the agent's permanent exit codes do.
        replicas = {"Worker": _replica(plan, len(plan.nodes), "ExitCode")}
    spec: Object = {
        "nprocPerNode": str(plan.nproc_per_node),
        **({} if is_static else {"elasticPolicy": _elastic_policy(plan)}),
        "runPolicy": _run_policy(plan),
        "pytorchReplicaSpecs": replicas,
    }
    return render_config_map(plan), _job(plan, spec)


def _replica(plan: LaunchPlan, replicas: int, restart_policy: str) -> Object:
    template = _in_gang(plan, render_template(plan, PYTORCH), own_group=False)
    return {"replicas": replicas, "restartPolicy": restart_policy, "template": template}


def _elastic_policy(plan: LaunchPlan) -> Object:
    """Complete, so that torchrun could read it too; the agent reads only the sizes."""
    node = plan.nodes[0]
    rendezvous = node.rendezvous
    assert isinstance(rendezvous, Elastic), "a static rendezvous has a Master"
    return {
        **given(rdzvBackend="c10d", rdzvPort=rendezvous.endpoint_port),
        "rdzvId": rendezvous.id,
        "minReplicas": node.min_nodes,
        "maxReplicas": node.max_nodes,
        "maxRestarts": node.max_restarts,
    }


def _run_policy(plan: LaunchPlan) -> Object:
    """Pods that still run when the job has ended are removed, or they would keep their GPUs."""
    pods, node = PodSettings.of(plan), plan.nodes[0]
    policy: Object = {"cleanPodPolicy": "Running"}
    if pods.has_master:
        # One failure restarts the containers of all pods. The operator counts each of them, and
        # ends the job once they are as many as the limit.
        counted = node.max_restarts * len(plan.nodes)
        policy["backoffLimit"] = counted + 1 if counted else 0
    if pods.gang == VOLCANO:
        policy["schedulingPolicy"] = given(
            minAvailable=node.min_nodes, queue=pods.queue, priorityClass=pods.priority_class
        )
    return policy


# -- TrainJob of Kubeflow Trainer (v2) ------------------------------------------------------------


def render_trainjob(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap, the runtime that holds the pod, and the TrainJob that names it."""
    pods, (api_version, _) = PodSettings.of(plan), API_OF_KIND["trainjob"]
    nodes, workers = len(plan.nodes), plan.nproc_per_node
    in_queue = pods.gang == VOLCANO and pods.queue is not None
    annotations = {"scheduling.volcano.sh/queue-name": pods.queue}
    queue = {"metadata": {"annotations": annotations}} if in_queue else {}
    metadata = render_metadata(plan)
    metadata["labels"] = {**metadata["labels"], f"{TRAINER}/framework": "torch"}
    runtime = {
        "mlPolicy": {"numNodes": nodes, "torch": {}},
        **({"podGroupPolicy": {VOLCANO: {}}} if pods.gang == VOLCANO else {}),
        "template": {**queue, "spec": _trainer_jobset(plan)},
    }
    job = {
        "runtimeRef": {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": plan.job_name},
        # Without this the trainer would inject nothing.
        "trainer": {"numNodes": nodes, "numProcPerNode": workers},
    }
    return (
        render_config_map(plan),
        _object(api_version, "TrainingRuntime", metadata, runtime),
        _job(plan, job),
    )


def can_be_tried(job: Object) -> bool:
    """Whether a dry run tells anything of it before what it names was made.

    The trainer's webhook refuses a TrainJob whose TrainingRuntime is not there yet.
    """
    return bool(job["kind"] != "TrainJob")


def _trainer_jobset(plan: LaunchPlan) -> Object:
    template = _in_gang(plan, render_template(plan, NODE, restartPolicy="Never"), own_group=False)
    job = {
        "backoffLimit": LOSSES_PER_NODE * len(plan.nodes),
        "podFailurePolicy": _failure_policy(replaces=True),
        "template": template,
    }
    step = {"labels": {f"{TRAINER}/trainjob-ancestor-step": "trainer"}}
    return {
        "network": {"publishNotReadyAddresses": True},
        "replicatedJobs": [_replicated({"metadata": step, "spec": job})],
    }


def _replicated(template: Object) -> Object:
    """The only job of a JobSet.

    It writes out the CRD's defaults: kubectl compares lists as a whole, and a second apply would
    change what the server has added.
    """
    return {"name": NODE, "groupName": "default", "replicas": 1, "template": template}


# -- JobSet, and Indexed Jobs ---------------------------------------------------------------------


def render_jobset(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap and the JobSet, whose only job has a pod for each node.

    When a pod is lost, all of them start again together.
    """
    # The first failed pod fails the job, so that the set starts all of them again.
    job = {**_indexed(plan, replaces=False), "backoffLimit": 0}
    # Permanent exit codes end the set; any other failure restarts it.
    permanent = {
        "name": "permanent",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        # For lost pods: the agents count the workers' restarts, and end with permanent codes.
        "failurePolicy": {"maxRestarts": LOSSES_PER_NODE * len(plan.nodes), "rules": [permanent]},
        "replicatedJobs": [_replicated({"spec": job})],
    }
    return render_config_map(plan), *_pod_group(plan), _job(plan, spec)


def render_indexed_job(plan: LaunchPlan) -> tuple[Object, ...]:
    """The agent's ConfigMap, the Service that gives the pods their names, and the Job.

    For clusters without an operator.
    """
    spec = _indexed(plan, replaces=True, subdomain=plan.job_name)
    service = {
        "clusterIP": "None",
        # The pods become ready by meeting, and meet by these names.
        "publishNotReadyAddresses": True,
        "selector": {protocol.LABEL_JOB: plan.job_name},
    }
    return (
        render_config_map(plan),
        _object("v1", "Service", render_metadata(plan), service),
        *_pod_group(plan),
        _job(plan, spec),
    )


def _indexed(plan: LaunchPlan, *, replaces: bool, **pod: str) -> Object:
    """A Job's spec with a pod for each node; ``replaces``: it replaces lost pods one by one."""
    template = render_template(plan, NODE, env=size_variables(plan), **pod, restartPolicy="Never")
    # An elastic job is done when MIN pods are: a pod that starts later would wait for a group.
    done = {"rules": [{"succeededCount": plan.min_nodes}]}
    return {
        # A Job can be resized if these two are equal and patched together.
        "parallelism": len(plan.nodes),
        "completions": len(plan.nodes),
        "completionMode": "Indexed",
        "backoffLimit": LOSSES_PER_NODE * len(plan.nodes),
        "podFailurePolicy": _failure_policy(replaces=replaces),
        **({"successPolicy": done} if plan.is_elastic else {}),
        "template": _in_gang(plan, template, own_group=True),
    }


def _failure_policy(*, replaces: bool) -> Object:
    """A permanent exit code ends the job; with ``replaces``, a disrupted pod does not count."""
    ours = [int(code) for code in ExitCode if 0 < code < RETRY_FROM]
    condition = {"type": "DisruptionTarget", "status": "True"}
    disrupted = {"action": "Ignore", "onPodConditions": [condition]}
    codes = {"containerName": NODE, "operator": "In", "values": [*ours, *START_FAILURES]}
    permanent = {"action": "FailJob", "onExitCodes": codes}
    return {"rules": [disrupted, permanent] if replaces else [permanent]}


# -- gang scheduling ------------------------------------------------------------------------------


def _gang_metadata(plan: LaunchPlan) -> Object:
    """Metadata of the object that Kueue admits, at its full size."""
    pods, metadata = PodSettings.of(plan), render_metadata(plan)
    if pods.gang == "kueue":
        metadata["labels"] = {**metadata["labels"], QUEUE_LABEL: pods.queue}
    return metadata


def _pod_group(plan: LaunchPlan) -> list[Object]:
    """Volcano's PodGroup, for kinds whose pods get none from an operator."""
    pods = PodSettings.of(plan)
    if pods.gang != VOLCANO:
        return []
    spec = given(minMember=plan.min_nodes, queue=pods.queue, priorityClassName=pods.priority_class)
    return [_object("scheduling.volcano.sh/v1beta1", "PodGroup", render_metadata(plan), spec)]


def _in_gang(plan: LaunchPlan, template: Object, *, own_group: bool) -> Object:
    """The pod template under its gang's scheduler; ``own_group``: in ``_pod_group``'s."""
    if PodSettings.of(plan).gang != VOLCANO:
        return template
    name = {"scheduling.k8s.io/group-name": plan.job_name}
    group = {"annotations": name} if own_group else {}
    spec = {"schedulerName": VOLCANO, **template["spec"]}
    return {"metadata": {**template["metadata"], **group}, "spec": spec}


RENDERERS: Mapping[str, Callable[[LaunchPlan], tuple[Object, ...]]] = {
    "pytorchjob": render_pytorchjob,
    "trainjob": render_trainjob,
    "jobset": render_jobset,
    "job": render_indexed_job,
}
