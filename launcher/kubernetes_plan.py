"""The launch plan of a job on Kubernetes: what a cluster would say is in the job file instead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from launcher import contract
from launcher.facts import TargetFacts
from launcher.plan import LaunchPlan, plan_run
from launcher.pods import IDENTITY_OF_KIND, PodSettings, plan_pods, pod_names
from launcher.storage import Claim

if TYPE_CHECKING:
    from launcher.job import JobSpec

TARGET = "kubernetes"


def plan_kubernetes(
    job: JobSpec, *, run_id: str, run_root: str, cwd: str, extra_args: tuple[str, ...] = ()
) -> LaunchPlan:
    """Decides everything about a run as pods; the same input gives the same plan.

    ``run_root`` and ``cwd`` are folders of the launcher's machine. Objects and pods are called as
    the job is. Raises ``InputError`` where the job asks for what its kind cannot do.
    """
    pods = plan_pods(job)
    job = job.model_copy(update={"engine": "agent", "nproc_per_node": plan_workers(job)})
    facts = plan_facts(job, pods, run_id=run_id, run_root=run_root, cwd=cwd)
    plan = plan_run(job, facts, run_id=run_id, extra_args=extra_args)
    assert plan.agent is not None, "engine: agent"
    agent = replace(
        plan.agent,
        identity=IDENTITY_OF_KIND[pods.kind],
        health_port=pods.probe_port,
        # `kubectl logs` is where people look, and all that is left without a shared folder.
        tee=True,
    )
    checkpoint_dir = facts.node_checkpoint_dir or contract.CONTAINER_CHECKPOINT_DIR
    return replace(plan, agent=agent, kubernetes=pods, checkpoint_dir=checkpoint_dir)


def plan_workers(job: JobSpec) -> int:
    """Workers per node. What the nodes have is not known here, so the job's own resources count."""
    if isinstance(job.nproc_per_node, int):
        return job.nproc_per_node
    gpus = job.resources.gpus or 0
    cores = max(1, int(job.resources.cpus or 1))
    return cores if job.nproc_per_node == "cpu" else gpus or cores


def plan_facts(
    job: JobSpec, pods: PodSettings, *, run_id: str, run_root: str, cwd: str
) -> TargetFacts:
    """What is known of any cluster."""
    accelerator: Literal["cuda", "cpu"] = "cuda" if pods.gpus else "cpu"
    run_dir = _folder(contract.CONTAINER_RUN_DIR, pods.run)
    return TargetFacts(
        target=TARGET,
        accelerator=accelerator,
        cpu_count=max(1, int(job.resources.cpus or 1)),
        # Kubernetes does not pull what a node holds already (kind, minikube, k3s).
        image=job.image or f"fabric-train:{accelerator}",
        torch_version=job.torch_version,
        run_root=run_root,
        cwd=cwd,
        node_names=pod_names(job),
        assigns_devices=True,
        node_run_dir=run_dir if pods.run is None else f"{run_dir}/{run_id}",
        node_checkpoint_dir=_folder(contract.CONTAINER_CHECKPOINT_DIR, pods.checkpoint),
        shares_storage=pods.checkpoint is not None,
    )


def _folder(mounted_at: str, claim: Claim | None) -> str:
    # Made by the agent as the pods' user. A subPath would be made by the kubelet as root, which
    # a file server may refuse, or leave where the pods cannot write.
    return mounted_at if claim is None else f"{mounted_at}/{claim.folder}"
