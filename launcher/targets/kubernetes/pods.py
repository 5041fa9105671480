"""Decides a job's pods without a cluster: names, storage, placement.

Names follow the controllers that make the pods: training operator v1.9, Trainer v2.3,
JobSet v0.12, Kubernetes' Indexed Job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.node_plan import Env
from launcher.job.storage import EPHEMERAL, Claim, Volume, parse_claim, parse_volume
from launcher.plan.target_settings import TargetSettings

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

HEALTH_PORT = 9400
"""The port at which the agent answers the kubelet's probes, unless the job names another."""
RUNS_FOLDER = "runs"
GPU_TAINT = "nvidia.com/gpu"

IDENTITY_OF_KIND = {
    "pytorchjob": "pytorchjob",
    "trainjob": "trainjob",
    "jobset": "indexed-job",
    "job": "indexed-job",
}
"""How an agent learns its index, by the names of ``agent/identity.py``."""


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """A taint that the pods tolerate; None: any."""

    key: str | None
    operator: str
    value: str | None
    effect: str | None


@dataclass(frozen=True, kw_only=True)
class PodSettings(TargetSettings):
    """What all pods of a job have in common, besides their node's plan.

    ``has_master``: a Master and Workers, for a static rendezvous. ``checkpoint`` and ``run`` are
    claims; None: each pod's own disk. ``probe_port`` None: no probes. A pod gets ``rdma_devices``
    of ``rdma_resource``. Only the launcher that follows the run uses ``start_limit_s``.
    """

    kind: str
    has_master: bool = False
    namespace: str | None = None
    checkpoint: Claim | None = None
    run: Claim | None = None
    volumes: tuple[Volume, ...] = ()
    secret: str
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    uid: int = 1000
    priority_class: str | None = None
    node_selector: Env = ()
    tolerations: tuple[Toleration, ...] = ()
    whole_node: bool = False
    gang: str | None = None
    queue: str | None = None
    host_network: bool = False
    gpus: int = 0
    rdma_resource: str = "rdma/hca"
    rdma_devices: int = 0
    probe_port: int | None = HEALTH_PORT
    start_limit_s: int = 600
    waits_for_master: bool = False
    """Whether the operator gives Workers an init container that waits for the Master."""

    @property
    def is_restricted(self) -> bool:
        """Whether Pod Security ``restricted`` admits the pods."""
        return not (self.host_network or self.rdma_devices or self.waits_for_master)


def plan_pods(job: JobSpec) -> PodSettings:
    """The pods of a job. Raises ``InputError`` for what its kind or Kubernetes cannot do."""
    spec = job.kubernetes
    has_master = job.rdzv.backend == "static" and spec.kind == "pytorchjob"
    checkpoint = _plan_checkpoint(job)
    _check(job)
    tolerations = tuple(
        Toleration(key=one.key, operator=one.operator, value=one.value, effect=one.effect)
        for one in spec.tolerations
    )
    gpus = job.resources.gpus or 0
    if gpus and GPU_TAINT not in {one.key for one in tolerations}:
        gpu_taint = Toleration(key=GPU_TAINT, operator="Exists", value=None, effect="NoSchedule")
        tolerations = (*tolerations, gpu_taint)
    port = job.agent.health.port
    return PodSettings(
        kind=spec.kind,
        has_master=has_master,
        namespace=spec.namespace,
        checkpoint=checkpoint,
        run=_plan_run(job, checkpoint),
        volumes=_plan_volumes(job),
        secret=spec.secret or f"{job.name}-secrets",
        image_pull_secrets=spec.image_pull_secrets,
        service_account=spec.service_account,
        uid=spec.run_as_user,
        priority_class=spec.priority_class,
        node_selector=spec.node_selector,
        tolerations=tolerations,
        # Two pods of a job on one machine's network would want the same ports.
        whole_node=spec.whole_node or spec.host_network,
        gang=spec.gang,
        queue=spec.queue,
        host_network=spec.host_network,
        gpus=gpus,
        rdma_resource=spec.rdma_resource,
        rdma_devices=int(job.resources.rdma),
        # On a machine's network another job may have the port: nothing is probed unless asked.
        probe_port=port or (None if spec.host_network else HEALTH_PORT),
        start_limit_s=spec.start_limit_s,
        waits_for_master=has_master and job.nnodes.max > 1,
    )


def pod_names(job: JobSpec) -> tuple[str, ...]:
    """The DNS name of each node's pod inside its namespace, by index."""
    kind = job.kubernetes.kind
    has_master = kind == "pytorchjob" and job.rdzv.backend == "static"
    return names_of_pods(job.name, kind, job.nnodes.max, has_master=has_master)


def names_of_pods(name: str, kind: str, count: int, *, has_master: bool) -> tuple[str, ...]:
    """The DNS names of ``count`` pods, as the kind's controller names them."""
    nodes = range(count)
    if has_master:
        return (f"{name}-master-0", *(f"{name}-worker-{index}" for index in nodes[:-1]))
    patterns = {
        "pytorchjob": f"{name}-worker-{{}}",
        "trainjob": f"{name}-node-0-{{}}.{name}",
        "jobset": f"{name}-node-0-{{}}.{name}",
        "job": f"{name}-{{}}.{name}",
    }
    return tuple(patterns[kind].format(index) for index in nodes)


def _plan_checkpoint(job: JobSpec) -> Claim | None:
    """The claim for checkpoints. Raises ``InputError`` for a job that needs one and has none."""
    given = job.kubernetes.checkpoint
    if given is not None and given != EPHEMERAL:
        claim = parse_claim(given)
        return claim if claim.folder else Claim(name=claim.name, folder=job.name)
    if given is None and (job.is_elastic or job.max_restarts or job.checkpoint_dir):
        why = f"nnodes is {job.nnodes}" if job.is_elastic else f"max_restarts is {job.max_restarts}"
        if job.checkpoint_dir:
            why = f"checkpoint_dir is {job.checkpoint_dir}, a folder of no pod"
        raise InputError(
            f"kubernetes.checkpoint is not set, but {why}: a pod that is replaced loses what lies "
            "on its own disk, and the training would start from nothing",
            "kubernetes.checkpoint: pvc/CLAIM (such as k8s/base/storage.yaml), or ephemeral if "
            "that is meant",
        )
    return None


def _plan_run(job: JobSpec, checkpoint: Claim | None) -> Claim | None:
    if job.kubernetes.run is not None:
        claim = parse_claim(job.kubernetes.run)
        return claim if claim.folder else Claim(name=claim.name, folder=RUNS_FOLDER)
    return None if checkpoint is None else Claim(name=checkpoint.name, folder=RUNS_FOLDER)


def _plan_volumes(job: JobSpec) -> tuple[Volume, ...]:
    volumes = tuple(parse_volume(text) for text in job.kubernetes.volumes)
    targets = [volume.target for volume in volumes]
    if twice := {target for target in targets if targets.count(target) > 1}:
        raise InputError(
            f"kubernetes.volumes has {min(twice)} twice", "give each volume a target of its own"
        )
    for mount in job.mounts:
        if mount.target not in targets:
            mode = ":ro" if mount.read_only else ""
            raise InputError(
                f"mounts: {mount.source} is a folder of this machine, which pods do not see",
                f"kubernetes.volumes: [pvc/CLAIM:{mount.target}{mode}]",
            )
    return volumes


def _check(job: JobSpec) -> None:
    """Raises ``InputError`` for combinations that the kind or Kubernetes cannot run."""
    spec, resources = job.kubernetes, job.resources
    if job.engine == "torchrun":
        raise InputError(
            "engine: torchrun, but on Kubernetes the agent runs the workers: what operators tell "
            "torchrun counts pods, and its names do not resolve while pods start",
            f"remove engine: torchrun, and {protocol.ENGINE} from the environment",
        )
    if spec.kind in ("trainjob", "jobset") and job.is_elastic:
        raise InputError(
            f"nnodes is {job.nnodes}, but a {spec.kind} keeps its size",
            f"--nnodes {job.nnodes.max}, or kubernetes.kind: pytorchjob or job, which are elastic",
        )
    if job.rdzv.backend == "static" and spec.kind != "pytorchjob":
        raise InputError(
            f"rdzv.backend is static, but pods of a {spec.kind} are replaced one by one",
            "remove rdzv.backend, or write kubernetes.kind: pytorchjob",
        )
    if job.nproc_per_node == "gpu" and not resources.gpus:
        raise InputError(
            "nproc_per_node is gpu, but without resources.gpus no GPU is asked for",
            "resources.gpus: 8, or how many GPUs a node has",
        )
    if resources.memory_bytes is not None and resources.shm_bytes >= resources.memory_bytes:
        raise InputError(
            f"resources.shm is {resources.shm} of a memory of {resources.memory}: on Kubernetes "
            "/dev/shm counts against the memory",
            "raise resources.memory by resources.shm",
        )
