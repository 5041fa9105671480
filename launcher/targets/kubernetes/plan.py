"""The launch plan of a job on Kubernetes: what a cluster would say is in the job file instead."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.node_plan import Elastic, NodePlan
from launcher.contract.records import changed_fields, dump_record
from launcher.job.storage import Claim
from launcher.plan.launch_plan import LaunchPlan, parse_plan, plan_run
from launcher.plan.pods import IDENTITY_OF_KIND, PodSettings, names_of_pods, plan_pods, pod_names
from launcher.plan.target_facts import TargetFacts
from launcher.plan.torchrun import line_prefix_template
from launcher.targets.agent_files import is_own_image
from launcher.targets.repository import OWN_IMAGE

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

TARGET = "kubernetes"
WIDTH = 96
"""Columns of the plan in a manifest."""


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
    checkpoint_dir = facts.node_checkpoint_dir or protocol.CONTAINER_CHECKPOINT_DIR
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
    # Kubernetes does not pull what a node holds already (kind, minikube, k3s).
    image = job.image or f"{OWN_IMAGE}:{accelerator}"
    in_image = job.agent.in_image
    run_dir = _folder(protocol.CONTAINER_RUN_DIR, pods.run)
    return TargetFacts(
        target=TARGET,
        accelerator=accelerator,
        cpu_count=max(1, int(job.resources.cpus or 1)),
        image=image,
        # No image can be read from here, so each pod checks its own (render_pod.CHECK).
        agent_in_image=is_own_image(image) if in_image is None else in_image,
        torch_version=job.torch_version,
        run_root=run_root,
        cwd=cwd,
        node_names=pod_names(job),
        assigns_devices=True,
        node_run_dir=run_dir if pods.run is None else f"{run_dir}/{run_id}",
        node_checkpoint_dir=_folder(protocol.CONTAINER_CHECKPOINT_DIR, pods.checkpoint),
        shares_storage=pods.checkpoint is not None,
    )


def _folder(mounted_at: str, claim: Claim | None) -> str:
    # Made by the agent as the pods' user. A subPath would be made by the kubelet as root, which
    # a file server may refuse, or leave where the pods cannot write.
    return mounted_at if claim is None else f"{mounted_at}/{claim.folder}"


# -- the plan in the cluster ------------------------------------------------------------------


def render_kept_plan(plan: LaunchPlan) -> str:
    """The plan as the cluster keeps it: node 0's task, and the rest for launchers elsewhere.

    Each pod's agent reads the task and finds out which node it is. Left out are the other nodes,
    which follow from the first, and this machine's folder.
    """
    assert plan.agent is not None, "planned by plan_kubernetes"
    rest = changed_fields(replace(plan, agent=None, detached=False))
    task = json.loads(NodeTask(node=plan.nodes[0], settings=plan.agent).to_json())
    kept = {name: value for name, value in rest.items() if name not in ("run_dir", "nodes")}
    whole = {**task, "plan": {"schema": plan.schema, **json.loads(dump_record(kept))}}
    return wrap_json(whole) + "\n"


def parse_kept_plan(text: str, run_dir: str) -> LaunchPlan:
    """Reads what ``render_kept_plan`` wrote; ``run_dir`` is a folder of this machine.

    Raises ``ValueError`` for anything else.
    """
    try:
        data = json.loads(text)
        rest = {**data["plan"], "agent": data["settings"], "nodes": [data["node"]]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"it has no {error}") from error
    kept = parse_plan(json.dumps({**rest, "run_dir": run_dir}))
    pods, first = kept.kubernetes, kept.nodes[0]
    if pods is None:
        raise ValueError("it is no plan for Kubernetes")
    count, master = first.max_nodes, pods.has_master
    names = names_of_pods(kept.job_name, pods.kind, count, has_master=master)
    nodes = tuple(_as_node(first, index, name) for index, name in enumerate(names))
    return replace(kept, nodes=nodes)


def wrap_json(value: Any, indent: str = "") -> str:
    """JSON with as many items on a line as fit into ``WIDTH``: short, and still to be read."""
    text = json.dumps(value)
    if len(indent + text) <= WIDTH or not isinstance(value, dict | list):
        return text
    deeper = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {wrap_json(one, deeper)}" for name, one in value.items()]
    else:
        items = [wrap_json(one, deeper) for one in value]
    lines = [""]
    for item in items:
        if lines[-1] and len(f"{deeper}{lines[-1]}, {item}") <= WIDTH and "\n" not in item:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    opened, closed = text[0], text[-1]
    return f"{opened}\n{deeper}" + f",\n{deeper}".join(lines[1:]) + f"\n{indent}{closed}"


def _as_node(first: NodePlan, index: int, name: str) -> NodePlan:
    own = {
        protocol.NODE_INDEX: str(index),
        protocol.LINE_PREFIX_TEMPLATE: line_prefix_template(index),
    }
    rendezvous = first.rendezvous
    if isinstance(rendezvous, Elastic):
        rendezvous = replace(rendezvous, is_host=rendezvous.is_host and index == 0)
    nodes = PurePosixPath(first.log_dir).parents[1]
    return replace(
        first,
        node_index=index,
        name=name,
        local_addr=name if first.local_addr == first.name else first.local_addr,
        rendezvous=rendezvous,
        env=tuple((key, own.get(key, value)) for key, value in first.env),
        log_dir=str(nodes / str(index) / str(first.incarnation)),
    )
