"""Plans a run whose nodes a starter starts: each node plans its own part when it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import InputError, KeyInputError
from launcher.contract.node_plan import AgentSettings
from launcher.follow.requests import count_nodes
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nnodes import NodesThere
from launcher.plan.target_facts import TargetFacts
from launcher.targets.processes import ProcessSettings
from launcher.targets.shared_folder import let_meet

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.targets.starter.starters import NodePlace

TARGET = "starter"


@dataclass(frozen=True, kw_only=True)
class StarterSettings(ProcessSettings):
    """``starter`` is what starts the nodes, and ``scheduler`` the id of the scheduler's job around
    them, empty without one."""

    starter: str
    scheduler: str = ""


def nodes_of(job: JobSpec, place: NodePlace) -> NodesThere:
    """The nodes that were started. Raises ``InputError`` if nothing says how many."""
    started = place.nodes
    if started is None and "nnodes" not in job.model_fields_set:
        raise InputError(
            f"{place.starter} does not tell how many nodes there are",
            "on every node: launcher node --nnodes N ...",
        )
    started = job.nnodes.max if started is None else started
    if place.index >= started:
        raise KeyInputError(
            ("nnodes",), f"{started}, but this is node {place.index}", "a larger nnodes"
        )
    return NodesThere(
        count=started,
        says=f"{place.starter} started {count_nodes(started)}",
        fix=f"start {count_nodes(job.nnodes.max)}, or type --nnodes {started}; a job without "
        "nnodes runs on all that are started",
        are_started=True,
    )


def plan_facts(job: JobSpec, here: TargetFacts, place: NodePlace) -> TargetFacts:
    """The facts for the planner: all nodes are like the one ``here``, and see the same folders."""
    facts = replace(
        here,
        place=f"nodes that {place.starter} started",
        agent=AgentSettings(identity=TARGET, health_port=job.agent.health.port, tee=True),
        own=StarterSettings(
            python=ProcessSettings.of(here).python,
            starter=place.starter,
            scheduler=place.scheduler,
        ),
    )
    return facts if job.nnodes.max == 1 else let_meet(facts, job.nnodes.max)


def env_of_node(plan: LaunchPlan, index: int, host: str, gpus: tuple[str, ...]) -> dict[str, str]:
    """The variables of node ``index``, which starts on ``host`` with these ``gpus``.

    Raises ``InputError`` if they are fewer than node 0 has.
    """
    node = plan.nodes[0]
    env = {**dict(node.env), protocol.NODE_INDEX: str(index)}
    wanted = len(node.device_ids)
    if len(gpus) < wanted:
        raise InputError(
            f"node {index} ({host}) has {len(gpus)} GPUs, and the run was planned for {wanted} on "
            "each node, as node 0 has them",
            f"ask the scheduler for {wanted} on each node, or --nproc-per-node {len(gpus) or 1}",
        )
    return env | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus[:wanted])} if wanted else {})
