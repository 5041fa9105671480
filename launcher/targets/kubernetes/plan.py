"""The launch plan of a job on Kubernetes: what a cluster would say is in the job file instead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from launcher.contract import protocol
from launcher.job.storage import Claim
from launcher.plan.launch_plan import LaunchPlan, parse_plan, plan_run
from launcher.plan.nodes import plan_node_like
from launcher.plan.target_facts import (
    RUN_ID,
    AgentFacts,
    Folders,
    MachineFacts,
    NodeFacts,
    TargetFacts,
)
from launcher.targets.kubernetes.pods import (
    IDENTITY_OF_KIND,
    PodSettings,
    names_of_pods,
    plan_pods,
    pod_names,
)

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

TARGET = "kubernetes"


def plan_kubernetes(
    job: JobSpec, *, run_id: str, run_root: str, cwd: str, extra_args: tuple[str, ...] = ()
) -> LaunchPlan:
    """A plan without a cluster: what one would say is in the job file instead."""
    facts = plan_facts(job, run_root=run_root, cwd=cwd)
    return plan_run(job, facts, run_id=run_id, extra_args=extra_args)


def plan_facts(job: JobSpec, *, run_root: str, cwd: str) -> TargetFacts:
    """What is known of any cluster; ``run_root`` and ``cwd`` are of the launcher's machine.

    Raises ``InputError`` where the job asks for what its kind cannot do.
    """
    pods = plan_pods(job)
    accelerator: Literal["cuda", "cpu"] = "cuda" if pods.gpus else "cpu"
    run_dir = _folder(protocol.CONTAINER_RUN_DIR, pods.run)
    folders = Folders(
        run=run_dir if pods.run is None else f"{run_dir}/{RUN_ID}",
        checkpoints=_folder(protocol.CONTAINER_CHECKPOINT_DIR, pods.checkpoint),
        in_container=True,
    )
    return TargetFacts(
        target=TARGET,
        accelerator=accelerator,
        # What the machines have is not known here: the job's own resources count.
        machine=MachineFacts(cpu_count=max(1, int(job.resources.cpus or 1)), device_ids=None),
        # Kubernetes does not pull what a node holds already (kind, minikube, k3s).
        image=job.image or f"fabric-train:{accelerator}",
        torch_version=job.torch_version,
        run_root=run_root,
        cwd=cwd,
        shares_storage=pods.checkpoint is not None,
        nodes=tuple(NodeFacts(name=name, folders=folders) for name in pod_names(job)),
        agent=AgentFacts(
            identity=IDENTITY_OF_KIND[pods.kind],
            health_port=pods.probe_port,
            # `kubectl logs` is where people look, and all that is left without a shared folder.
            tee=True,
        ),
        own=pods,
    )


def _folder(mounted_at: str, claim: Claim | None) -> str:
    # Made by the agent as the pods' user. A subPath would be made by the kubelet as root, which
    # a file server may refuse, or leave where the pods cannot write.
    return mounted_at if claim is None else f"{mounted_at}/{claim.folder}"


# -- the plan in the cluster ------------------------------------------------------------------


def render_kept_plan(plan: LaunchPlan) -> str:
    """The plan as the cluster keeps it, for launchers on other machines.

    Without this machine's folder, and with the first node alone: the others follow from it.
    """
    return replace(plan, run_dir="", detached=False, nodes=plan.nodes[:1]).to_json()


def parse_kept_plan(text: str, run_dir: str) -> LaunchPlan:
    """Reads what ``render_kept_plan`` wrote; ``run_dir`` is a folder of this machine.

    Raises ``ValueError`` for anything else.
    """
    kept = parse_plan(text)
    pods, first = kept.own, kept.nodes[0]
    if not isinstance(pods, PodSettings):
        raise ValueError("it is no plan for Kubernetes")
    count, master = first.max_nodes, pods.has_master
    names = names_of_pods(kept.job_name, pods.kind, count, has_master=master)
    nodes = tuple(
        plan_node_like(first, index, name, first.incarnation) for index, name in enumerate(names)
    )
    return replace(kept, run_dir=run_dir, nodes=nodes)
