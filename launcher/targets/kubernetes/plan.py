"""The launch plan of a job on Kubernetes: what a cluster would say is in the job file instead."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.records import dump_record
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
from launcher.targets.agent_files import is_own_image
from launcher.targets.kubernetes.pods import (
    IDENTITY_OF_KIND,
    PodSettings,
    names_of_pods,
    plan_pods,
    pod_names,
)
from launcher.targets.repository import OWN_IMAGE

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

TARGET = "kubernetes"
WIDTH = 96
"""Columns of the plan in a manifest."""


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
    # Kubernetes does not pull what a node holds already (kind, minikube, k3s).
    image = job.image or f"{OWN_IMAGE}:{accelerator}"
    in_image = job.agent.in_image
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
        image=image,
        # No image can be read from here, so each pod checks its own (render_pod.CHECK).
        agent_in_image=is_own_image(image) if in_image is None else in_image,
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
    """The plan as the cluster keeps it: node 0's task, and the rest for launchers elsewhere.

    Each pod's agent reads the task and finds out which node it is. Left out are the other nodes,
    which follow from the first, and this machine's folder.
    """
    assert plan.agent is not None, "pods need the agent"
    task = json.loads(NodeTask(node=plan.nodes[0], settings=plan.agent).to_json())
    rest = json.loads(replace(plan, agent=None, detached=False, nodes=(), own=None).to_json())
    del rest["run_dir"], rest["nodes"]
    pods = json.loads(dump_record(PodSettings.of(plan)))
    return wrap_json({**task, "plan": rest, "pods": pods}) + "\n"


def parse_kept_plan(text: str, run_dir: str) -> LaunchPlan:
    """Reads what ``render_kept_plan`` wrote; ``run_dir`` is a folder of this machine.

    Raises ``ValueError`` for anything else.
    """
    from pydantic import TypeAdapter

    try:
        data = json.loads(text)
        rest = {**data["plan"], "agent": data["settings"], "nodes": [data["node"]]}
        pods = TypeAdapter(PodSettings).validate_python(data["pods"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no plan for Kubernetes: {error}") from error
    kept = parse_plan(json.dumps({**rest, "run_dir": run_dir}))
    first = kept.nodes[0]
    count, master = first.max_nodes, pods.has_master
    names = names_of_pods(kept.job_name, pods.kind, count, has_master=master)
    nodes = tuple(
        plan_node_like(first, index, name, first.incarnation) for index, name in enumerate(names)
    )
    return replace(kept, nodes=nodes, own=pods)


def wrap_json(value: Any, indent: str = "", name: str = "") -> str:
    """JSON with as many items on a line as fit into ``WIDTH``: short, and still to be read."""
    key = f"{json.dumps(name)}: " if name else ""
    text = key + json.dumps(value)
    if len(indent + text) <= WIDTH or not isinstance(value, dict | list):
        return text
    deeper = indent + "  "
    items = value.items() if isinstance(value, dict) else [("", one) for one in value]
    lines = [""]
    for item in (wrap_json(one, deeper, str(of)) for of, one in items):
        if lines[-1] and len(f"{deeper}{lines[-1]}, {item}") <= WIDTH and "\n" not in item:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{key}{opened}\n{deeper}" + f",\n{deeper}".join(lines[1:]) + f"\n{indent}{closed}"
