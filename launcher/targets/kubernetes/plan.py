"""Plans a job on Kubernetes without a cluster: image, pod names, claims, tolerations; refuses what
its kind cannot run.

Names of pods follow the controllers that make them: training operator v1.9, Trainer v2.3,
JobSet v0.12, Kubernetes' Indexed Job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.node_plan import START_LIMIT_S, AgentSettings, Env, NodeTask
from launcher.contract.records import dump_record, parse_record
from launcher.job.storage import EPHEMERAL, Claim, Volume, parse_claim, parse_volume
from launcher.plan.launch_plan import LaunchPlan, parse_plan, plan_run
from launcher.plan.nodes import plan_node_like
from launcher.plan.target_facts import RUN_ID, Folders, MachineFacts, NodeFacts, TargetFacts
from launcher.plan.target_settings import TargetSettings
from launcher.targets.agent_files import OWN_IMAGE, is_own_image

if TYPE_CHECKING:
    from launcher.code.place import CodePlace
    from launcher.code.record import PackedCode
    from launcher.job.spec import JobSpec

WIDTH = 96
"""Columns of the plan in a manifest."""
HEALTH_PORT = 9400
"""The port at which the agent answers the kubelet's probes, unless the job names another."""
RUNS_FOLDER = "runs"
GPU_RESOURCE = "nvidia.com/gpu"
"""A resource of nodes with GPUs, and the taint that keeps other pods away from them."""

IDENTITY_OF_KIND = {
    "pytorchjob": "pytorchjob",
    "trainjob": "trainjob",
    "jobset": "indexed-job",
    "job": "indexed-job",
}
"""How an agent learns its index, by the names of ``agent/node/identity.py``."""
POD_NAMES = {
    "pytorchjob": "{name}-worker-{index}",
    "trainjob": "{name}-node-0-{index}.{name}",
    "jobset": "{name}-node-0-{index}.{name}",
    "job": "{name}-{index}.{name}",
}
"""The DNS name of a pod inside its namespace."""


@dataclass(frozen=True, kw_only=True)
class PodSettings(TargetSettings):
    """What all pods of a job have in common, besides their node's plan.

    ``has_master``: a Master and Workers, for a static rendezvous. ``checkpoint`` and ``run`` are
    claims; None: each pod's own disk. ``probe_port`` None: no probes. A pod gets ``rdma_devices``
    of ``rdma_resource``. ``tolerations`` are fields and values. ``start_limit_s`` is for the
    launcher that follows the run.
    """

    kind: str
    has_master: bool = False
    namespace: str | None = None
    checkpoint: Claim | None = None
    run: Claim | None = None
    volumes: tuple[Volume, ...] = ()
    secret: str
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str | None = None
    service_account: str | None = None
    uid: int = 1000
    priority_class: str | None = None
    node_selector: Env = ()
    tolerations: tuple[Env, ...] = ()
    whole_node: bool = False
    gang: str | None = None
    queue: str | None = None
    host_network: bool = False
    gpus: int = 0
    rdma_resource: str = "rdma/hca"
    rdma_devices: int = 0
    probe_port: int | None = HEALTH_PORT
    start_limit_s: int = START_LIMIT_S
    code_bytes: int = 0
    """The size of the packed code that the pods get."""

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of all claims that the pods mount, each once."""
        claims = (self.checkpoint, self.run, *(volume.claim for volume in self.volumes))
        return tuple(dict.fromkeys(claim.name for claim in claims if claim is not None))


def plan_pods(job: JobSpec) -> PodSettings:
    """The pods of a job. Raises ``InputError`` for what its kind or Kubernetes cannot do."""
    spec = job.kubernetes
    has_master = job.rdzv.backend == "static" and spec.kind == "pytorchjob"
    checkpoint = _plan_checkpoint(job)
    _check(job)
    tolerations = [
        {
            "key": toleration.key,
            "operator": toleration.operator or ("Equal" if toleration.value else "Exists"),
            "value": toleration.value,
            "effect": toleration.effect,
        }
        for toleration in spec.tolerations
    ]
    gpus = job.resources.gpus or 0
    if gpus and GPU_RESOURCE not in {fields["key"] for fields in tolerations}:
        tolerations.append({"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"})
    run = None if checkpoint is None else Claim(name=checkpoint.name, folder=RUNS_FOLDER)
    if spec.run is not None:
        run = _claim_with_folder(spec.run, RUNS_FOLDER)
    port = job.agent.health.port
    return PodSettings(
        kind=spec.kind,
        has_master=has_master,
        namespace=spec.namespace,
        checkpoint=checkpoint,
        run=run,
        volumes=_plan_volumes(job),
        secret=spec.secret or f"{job.name}-secrets",
        image_pull_secrets=spec.image_pull_secrets,
        image_pull_policy=spec.image_pull_policy,
        service_account=spec.service_account,
        uid=spec.run_as_user,
        priority_class=spec.priority_class,
        node_selector=spec.node_selector,
        tolerations=tuple(
            tuple((field, value) for field, value in fields.items() if value)
            for fields in tolerations
        ),
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
    )


def names_of_pods(name: str, kind: str, count: int, *, has_master: bool) -> tuple[str, ...]:
    """The DNS names of ``count`` pods, as the kind's controller names them."""
    workers = tuple(POD_NAMES[kind].format(name=name, index=index) for index in range(count))
    return (f"{name}-master-0", *workers[:-1]) if has_master else workers


def _plan_checkpoint(job: JobSpec) -> Claim | None:
    """The claim for checkpoints. Raises ``InputError`` for a job that needs one and has none."""
    given = job.kubernetes.checkpoint
    if given is not None and given != EPHEMERAL:
        return _claim_with_folder(given, job.name)
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


def describe_own_disks(plan: LaunchPlan) -> str:
    """A note for a run whose checkpoints are on the pods' own disks."""
    node = plan.nodes[0]
    lost = ""
    if 2 * node.min_nodes <= node.max_nodes and plan.is_elastic:
        lost = "; after a loss the other nodes wait for a new pod unless they are more than half"
    return (
        "CHECKPOINT_DIR is lost with its pod: kubernetes.checkpoint names no claim"
        f"{lost}; fix: --set kubernetes.checkpoint=pvc/CLAIM"
    )


def _claim_with_folder(text: str, folder: str) -> Claim:
    claim = parse_claim(text)
    return claim if claim.folder else replace(claim, folder=folder)


def _plan_volumes(job: JobSpec) -> tuple[Volume, ...]:
    volumes = tuple(parse_volume(text) for text in job.kubernetes.volumes)
    targets = [volume.target for volume in volumes]
    for mount in job.mounts:
        if mount.target not in targets:
            mode = ":ro" if mount.read_only else ""
            raise InputError(
                f"mounts: {mount.source} is a folder of this machine, which pods do not see",
                f"kubernetes.volumes: [pvc/CLAIM:{mount.target}{mode}]",
            )
    return volumes


def _check(job: JobSpec) -> None:
    """Raises ``InputError`` for what the kind or Kubernetes cannot run."""
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


# -- facts and plan --------------------------------------------------------------------------


def plan_kubernetes(
    job: JobSpec,
    *,
    run_id: str,
    run_root: str,
    cwd: str,
    place: CodePlace | None = None,
    code: PackedCode | None = None,
) -> LaunchPlan:
    """Plans a job without asking a cluster."""
    facts = plan_facts(job, run_root=run_root, cwd=cwd, code=code)
    hash = code.hash if code else ""
    return plan_run(job, facts, run_id=run_id, place=place, code_hash=hash)


def plan_facts(
    job: JobSpec, *, run_root: str, cwd: str, code: PackedCode | None = None
) -> TargetFacts:
    """The facts, the same for any cluster; ``run_root`` and ``cwd`` are on the launcher's machine.

    Raises ``InputError`` if the job asks for something that its kind cannot do.
    """
    pods = replace(plan_pods(job), code_bytes=len(code.data) if code else 0)
    accelerator: Literal["cuda", "cpu"] = "cuda" if pods.gpus else "cpu"
    # Kubernetes does not pull what a node holds already (kind, minikube, k3s).
    image = job.image or f"{OWN_IMAGE}:{accelerator}"
    names = names_of_pods(job.name, pods.kind, job.nnodes.max, has_master=pods.has_master)
    in_image = job.agent.in_image
    run_dir = _folder(protocol.CONTAINER_RUN_DIR, pods.run)
    folders = Folders(
        run=run_dir if pods.run is None else f"{run_dir}/{RUN_ID}",
        checkpoints=_folder(protocol.CONTAINER_CHECKPOINT_DIR, pods.checkpoint),
        code=protocol.CONTAINER_CODE,
        in_container=True,
    )
    return TargetFacts(
        target="kubernetes",
        place=f"Kubernetes, image {image}",
        accelerator=accelerator,
        # What the machines have is not known here: the job's own resources count.
        machine=MachineFacts(cpu_count=max(1, int(job.resources.cpus or 1)), device_ids=None),
        image=image,
        # No image can be read from here, so each pod checks its own (render_pod.CHECK).
        agent_in_image=is_own_image(image) if in_image is None else in_image,
        torch_version=job.torch_version,
        run_root=run_root,
        cwd=cwd,
        shares_storage=pods.checkpoint is not None,
        nodes=tuple(NodeFacts(name=name, folders=folders) for name in names),
        agent=AgentSettings(
            identity=IDENTITY_OF_KIND[pods.kind],
            health_port=pods.probe_port,
            # `kubectl logs` is where people look, and all that is left without a shared folder.
            tee=True,
        ),
        own=pods,
    )


def _folder(mounted_at: str, claim: Claim | None) -> str:
    # The agent makes the folder, as the pods' user. A subPath would be made by the kubelet as root:
    # file servers may refuse that, and the pods could not write there.
    return mounted_at if claim is None else f"{mounted_at}/{claim.folder}"


# -- the plan in the cluster ------------------------------------------------------------------


def render_kept_plan(plan: LaunchPlan) -> str:
    """The plan as the cluster keeps it: node 0's task, and the rest for launchers elsewhere.

    Each pod's agent reads the task and finds out which node it is. The text leaves out the other
    nodes, which follow from the first, and this machine's folder.
    """
    assert plan.agent is not None, "pods need the agent"
    task = json.loads(NodeTask(node=plan.nodes[0], settings=plan.agent).to_json())
    code = plan.code and replace(plan.code, root="")
    others = replace(plan, agent=None, detached=False, nodes=(), own=None, code=code)
    rest = json.loads(others.to_json())
    del rest["run_dir"], rest["nodes"]
    pods = json.loads(dump_record(PodSettings.of(plan)))
    return wrap_json({**task, "plan": rest, "pods": pods}) + "\n"


def parse_kept_plan(text: str, run_dir: str) -> LaunchPlan:
    """Reads what ``render_kept_plan`` wrote; ``run_dir`` is a folder of this machine.

    Raises ``ValueError`` for anything else.
    """
    try:
        data = json.loads(text)
        rest = {**data["plan"], "agent": data["settings"], "nodes": [data["node"]]}
        pods = parse_record(PodSettings, data["pods"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no plan for Kubernetes: {error}") from error
    kept = parse_plan(json.dumps({**rest, "run_dir": run_dir}))
    first = kept.nodes[0]
    names = names_of_pods(kept.job_name, pods.kind, first.max_nodes, has_master=pods.has_master)
    nodes = (plan_node_like(first, n, name, first.incarnation) for n, name in enumerate(names))
    return replace(kept, nodes=tuple(nodes), own=pods)


def wrap_json(value: object, indent: str = "", name: str = "") -> str:
    """JSON with as many items on a line as fit into ``WIDTH``: short, and still readable."""
    key = f"{json.dumps(name)}: " if name else ""
    text = key + json.dumps(value)
    if len(indent + text) <= WIDTH or not isinstance(value, dict | list):
        return text
    deeper = indent + "  "
    items = value.items() if isinstance(value, dict) else [("", inner) for inner in value]
    lines = [""]
    for item in (wrap_json(inner, deeper, str(of)) for of, inner in items):
        if lines[-1] and len(f"{deeper}{lines[-1]}, {item}") <= WIDTH and "\n" not in item:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{key}{opened}\n{deeper}" + f",\n{deeper}".join(lines[1:]) + f"\n{indent}{closed}"
